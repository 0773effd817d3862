"""Reports of jobs: one HTML page that needs nothing beside itself, with pictures as inline SVG.

Pure: values in, text out.

    axes --> plot --> a job's own plots --+
    (scales, words)   (frame, legend)     +--> page
                      tables, cards ------+    (style sheet, light and dark)
"""
