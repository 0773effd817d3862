package ackgate.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Credentials that only a test knows: tokens and certificates, and the settings of a broker that takes them.
 *
 * <pre>{@code
 * try (AckgateCredentials credentials = AckgateCredentials.make();
 *         AckgateProcess broker = AckgateProcess.builder()
 *                 .settings(credentials.tokenSettings())
 *                 .settings(credentials.tlsSettings())
 *                 .start();
 *         PulsarClient client = PulsarClient.builder()
 *                 .serviceUrl(broker.serviceUrlTls())
 *                 .tlsTrustCertsFilePath(credentials.authority().toString())
 *                 .authentication(AuthenticationFactory.token(credentials.token("billing")))
 *                 .build()) {
 *     ...
 * }
 * }</pre>
 *
 * <p>They are files of a temporary directory that the command of {@link AckgateProcess} writes, once for each thing that
 * is asked for first. Methods may be called from one thread at a time.
 */
public final class AckgateCredentials implements AutoCloseable {

    private static final String PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken";
    private static final List<String> CLIENTS = List.of("client", "admin");

    private final List<String> command;
    private final Path directory;
    private final Path secret;
    private final Path certificates;

    private AckgateCredentials(List<String> command) {
        this.command = command;
        try {
            directory = Files.createTempDirectory("ackgate-credentials-");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        secret = directory.resolve("secret.key");
        certificates = directory.resolve("certificates");
    }

    /** Credentials of a secret and an authority of their own. */
    public static AckgateCredentials make() {
        return new AckgateCredentials(AckgateProcess.defaultCommand());
    }

    /**
     * A token for {@code role}, which does not expire.
     *
     * @throws IllegalStateException if ackgate cannot be run
     */
    public String token(String role) {
        return run("tokens", "create", "--secret-key", secretUrl(), "--subject=" + role)
                .trim();
    }

    /** Keys of {@code broker.conf}: clients without a token of this secret are refused. */
    public Map<String, String> tokenSettings() {
        return Map.of(
                "authenticationEnabled", "true", "authenticationProviders", PROVIDER, "tokenSecretKey", secretUrl());
    }

    /** Keys of {@code broker.conf}: TLS ports beside those in clear. A client may show a certificate. */
    public Map<String, String> tlsSettings() {
        Map<String, String> settings = new TreeMap<>(Map.of("brokerServicePortTls", "0", "webServicePortTls", "0"));
        settings.put("tlsCertificateFilePath", certificateFile("server.pem").toString());
        settings.put("tlsKeyFilePath", certificateFile("server.key.pem").toString());
        settings.put("tlsTrustCertsFilePath", authority().toString());
        return settings;
    }

    /** The certificate that clients trust, PEM. */
    public Path authority() {
        return certificateFile("ca.pem");
    }

    /** What the client {@code name} shows, PEM: {@code client} or {@code admin}, which is its common name. */
    public Path certificate(String name) {
        return certificateFile("client-" + known(name) + ".pem");
    }

    /** The key of {@link #certificate}, PEM. */
    public Path key(String name) {
        return certificateFile("client-" + known(name) + ".key.pem");
    }

    /** Remove the files. A broker that runs with them goes on. */
    @Override
    public void close() {
        AckgateProcess.remove(directory);
    }

    private static String known(String name) {
        if (!CLIENTS.contains(name)) {
            throw new IllegalArgumentException("no client " + name + ", only " + CLIENTS);
        }
        return name;
    }

    private String secretUrl() {
        if (!Files.exists(secret)) {
            run("tokens", "create-secret-key", "--output", secret.toString());
        }
        return secret.toUri().toString();
    }

    private Path certificateFile(String name) {
        if (!Files.exists(certificates)) {
            run("tls", "make-test-certificates", certificates.toString());
        }
        return certificates.resolve(name);
    }

    private String run(String... arguments) {
        List<String> line = new ArrayList<>(command);
        line.addAll(List.of(arguments));
        try {
            Process process = AckgateProcess.spawn(line);
            String told = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            if (process.waitFor() != 0) {
                throw new IllegalStateException(String.join(" ", line) + ": " + told.trim());
            }
            return told;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while ackgate made credentials", error);
        }
    }
}
