"""What several commands share: tables, colours, and the HTTP client of the admin interface."""
