package ackgate.testing;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * A broker in a process of its own, on a temporary directory and free ports of the loopback interface.
 *
 * <pre>{@code
 * try (AckgateProcess broker = AckgateProcess.builder().setting("brokerDeduplicationEnabled", true).start();
 *         PulsarClient client = PulsarClient.builder().serviceUrl(broker.serviceUrl()).build()) {
 *     broker.kill();   // kill -9
 *     broker.start();  // the same directory, the same ports
 * }
 * }</pre>
 *
 * <p>The command is {@code ackgate} of the {@code PATH}; the system property {@value #COMMAND_PROPERTY} or the
 * environment variable {@value #COMMAND_VARIABLE} names another one: a file, or words with spaces between. A broker ends with the Java
 * process if that ends in an orderly way. Methods may be called from one thread at a time.
 */
public final class AckgateProcess implements AutoCloseable {

    /** System property: the command that starts ackgate. */
    public static final String COMMAND_PROPERTY = "ackgate.command";

    /** Environment variable for the same. The system property wins. */
    public static final String COMMAND_VARIABLE = "ACKGATE_COMMAND";

    /** Lines of the log that are kept; older ones go. */
    public static final int LOG_LINES_MAX = 2_000;

    private static final Pattern READY = Pattern.compile("ackgate ready((?: [a-z+]+://\\S+)+)");
    private static final Duration STOP_MAX = Duration.ofSeconds(30);

    private final List<String> command;
    private final Map<String, String> settings;
    private final Duration startTimeout;
    private final Path directory;
    private final boolean ownsDirectory;
    private final Deque<String> log = new ArrayDeque<>();
    private final Thread atExit = new Thread(this::destroy, "ackgate-end");

    private Process process;
    private Thread drain;
    private Map<String, String> urls = Map.of();

    private AckgateProcess(Builder builder) {
        command = builder.command;
        settings = new TreeMap<>(builder.settings);
        startTimeout = builder.startTimeout;
        ownsDirectory = builder.directory == null;
        try {
            directory = ownsDirectory ? Files.createTempDirectory("ackgate-") : builder.directory;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** A description of a broker; nothing is started. */
    public static Builder builder() {
        return new Builder();
    }

    /** For {@code PulsarClient.builder().serviceUrl(...)}: {@code pulsar://127.0.0.1:PORT}. */
    public String serviceUrl() {
        return url("pulsar");
    }

    /** For {@code PulsarAdmin.builder().serviceHttpUrl(...)}: {@code http://127.0.0.1:PORT}. */
    public String adminUrl() {
        return url("http");
    }

    /** The service URL by TLS, for a broker with {@code brokerServicePortTls}. */
    public String serviceUrlTls() {
        return url("pulsar+ssl");
    }

    /** The admin URL by TLS, for a broker with {@code webServicePortTls}. */
    public String adminUrlTls() {
        return url("https");
    }

    /** The end of what it logged, over all starts. */
    public String log() {
        synchronized (log) {
            return String.join("\n", log);
        }
    }

    /** Whether the process lives. */
    public boolean isRunning() {
        return process != null && process.isAlive();
    }

    /**
     * Start, and return when it listens.
     *
     * @throws IllegalStateException if it runs already, or does not start; with the end of its log
     */
    public AckgateProcess start() {
        if (isRunning()) {
            throw new IllegalStateException("the broker runs already");
        }
        List<String> line = new ArrayList<>(command);
        line.addAll(List.of("broker", "--data-dir", directory.toString()));
        Map<String, String> given = new TreeMap<>(Map.of("brokerServicePort", "0", "webServicePort", "0"));
        given.putAll(settings);
        given.forEach((key, value) -> line.addAll(List.of("--set", key + "=" + value)));
        CompletableFuture<String> ready = new CompletableFuture<>();
        process = spawn(line);
        Process started = process;
        drain = new Thread(() -> drain(started, ready), "ackgate-log");
        drain.setDaemon(true);
        drain.start();
        try {
            urls = byScheme(ready.get(startTimeout.toMillis(), TimeUnit.MILLISECONDS));
        } catch (TimeoutException | ExecutionException error) {
            kill();
            throw new IllegalStateException("the broker did not start: " + error.getMessage() + "\n" + log(), error);
        } catch (InterruptedException error) {
            kill();
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while the broker started", error);
        }
        keep("brokerServicePort", "pulsar");
        keep("webServicePort", "http");
        keep("brokerServicePortTls", "pulsar+ssl");
        keep("webServicePortTls", "https");
        Runtime.getRuntime().addShutdownHook(atExit);
        return this;
    }

    /** {@code kill -9}, and wait until it is gone. Fine if it is gone already. */
    public void kill() {
        end(Process::destroyForcibly);
    }

    /** SIGTERM, and wait until it is gone; after 30 seconds {@link #kill}. Fine if it is gone already. */
    public void stop() {
        end(Process::destroy);
    }

    /** End it, and remove its directory unless that was given. */
    @Override
    public void close() {
        kill();
        if (ownsDirectory) {
            remove(directory);
        }
    }

    private String url(String scheme) {
        String found = urls.get(scheme);
        if (found == null) {
            throw new IllegalStateException("the broker has no " + scheme + " port, or was not started");
        }
        return found;
    }

    private void keep(String key, String scheme) {
        String found = urls.get(scheme);
        if (found != null) {
            settings.put(key, found.substring(found.lastIndexOf(':') + 1));
        }
    }

    private void destroy() {
        if (process != null) {
            process.destroyForcibly();
        }
    }

    private void end(Consumer<Process> how) {
        if (process == null) {
            return;
        }
        how.accept(process);
        try {
            if (!process.waitFor(STOP_MAX.toMillis(), TimeUnit.MILLISECONDS)) {
                process.destroyForcibly().waitFor();
            }
            drain.join();
        } catch (InterruptedException error) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
        process = null;
        try {
            Runtime.getRuntime().removeShutdownHook(atExit);
        } catch (IllegalStateException ending) {
            // the Java process ends already, and the hook with it
        }
    }

    private void drain(Process from, CompletableFuture<String> ready) {
        try (BufferedReader lines =
                new BufferedReader(new InputStreamReader(from.getInputStream(), StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Matcher match = READY.matcher(line);
                if (match.matches()) {
                    ready.complete(match.group(1).trim());
                    continue;
                }
                synchronized (log) {
                    log.addLast(line);
                    if (log.size() > LOG_LINES_MAX) {
                        log.removeFirst();
                    }
                }
            }
        } catch (IOException error) {
            // the process was killed
        }
        ready.completeExceptionally(new IOException("its process ended"));
    }

    private static Map<String, String> byScheme(String urls) {
        Map<String, String> found = new TreeMap<>();
        for (String url : urls.split(" ")) {
            found.put(url.substring(0, url.indexOf(':')), url);
        }
        return found;
    }

    /** A process of ackgate, with standard error in its output. */
    static Process spawn(List<String> line) {
        ProcessBuilder starting = new ProcessBuilder(line).redirectErrorStream(true);
        starting.environment().remove(COMMAND_VARIABLE); // ackgate would take it for a setting
        try {
            return starting.start();
        } catch (IOException error) {
            throw new IllegalStateException(
                    line.get(0) + " cannot be started: " + error.getMessage() + ". Install it with pip install"
                            + " 'ackgate[broker]', or name it in " + COMMAND_PROPERTY + " or " + COMMAND_VARIABLE,
                    error);
        }
    }

    static void remove(Path directory) {
        try (Stream<Path> files = Files.walk(directory)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Without arguments. */
    static List<String> defaultCommand() {
        String named = System.getProperty(COMMAND_PROPERTY, System.getenv(COMMAND_VARIABLE));
        if (named == null || named.isBlank()) {
            return List.of("ackgate");
        }
        return Files.isExecutable(Path.of(named)) ? List.of(named) : List.of(named.trim().split(" +"));
    }

    /** Describes a broker. */
    public static final class Builder {
        private final Map<String, String> settings = new TreeMap<>();
        private List<String> command = defaultCommand();
        private Duration startTimeout = Duration.ofSeconds(30);
        private Path directory;

        private Builder() {}

        /** A key of {@code broker.conf}. */
        public Builder setting(String key, Object value) {
            settings.put(key, String.valueOf(value));
            return this;
        }

        /** Keys of {@code broker.conf} with their values, such as {@link AckgateCredentials#tokenSettings}. */
        public Builder settings(Map<String, ?> given) {
            given.forEach(this::setting);
            return this;
        }

        /** The command that starts ackgate, without arguments; default: {@code ackgate}. */
        public Builder command(String... words) {
            command = List.of(words);
            return this;
        }

        /** Where the data lie, which stay there. Default: a temporary directory. */
        public Builder directory(Path directory) {
            this.directory = directory;
            return this;
        }

        /** How long a start may take; default: 30 seconds. */
        public Builder startTimeout(Duration timeout) {
            startTimeout = timeout;
            return this;
        }

        /** Without starting it. */
        public AckgateProcess build() {
            return new AckgateProcess(this);
        }

        /** Start it, as {@link AckgateProcess#start} does. What was begun is removed if that fails. */
        public AckgateProcess start() {
            AckgateProcess broker = build();
            try {
                return broker.start();
            } catch (RuntimeException error) {
                broker.close();
                throw error;
            }
        }
    }
}
