package ackgate.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;
import org.testcontainers.utility.DockerImageName;

/**
 * A broker in a container, for Testcontainers, with the addresses of Testcontainers' {@code PulsarContainer}:
 *
 * <pre>{@code
 * try (AckgateContainer broker = new AckgateContainer(DockerImageName.parse("ackgate:latest"))) {
 *     broker.start();
 *     PulsarClient client = PulsarClient.builder().serviceUrl(broker.getPulsarBrokerUrl()).build();
 * }
 * }</pre>
 *
 * <p>The image is built in the repository: {@code docker build -t ackgate .}. A broker answers lookups with its own
 * address, so the port of the binary protocol has the same number inside and outside: one that is free on this machine.
 */
public final class AckgateContainer extends GenericContainer<AckgateContainer> {

    /** Port of the admin interface in the container. */
    public static final int BROKER_HTTP_PORT = 8080;

    private final int port = freePort();
    private final Map<String, String> settings = new TreeMap<>();

    /** The image is not looked for before the start. */
    public AckgateContainer(DockerImageName image) {
        super(image);
        addFixedExposedPort(port, port);
        addExposedPort(BROKER_HTTP_PORT);
        waitingFor(Wait.forHttp("/admin/v2/brokers/ready")
                .forPort(BROKER_HTTP_PORT)
                .withStartupTimeout(Duration.ofSeconds(60)));
    }

    /** A key of {@code broker.conf}. */
    public AckgateContainer withSetting(String key, Object value) {
        settings.put(key, String.valueOf(value));
        return this;
    }

    /** For {@code PulsarClient.builder().serviceUrl(...)}. */
    public String getPulsarBrokerUrl() {
        return "pulsar://" + getHost() + ":" + port;
    }

    /** For {@code PulsarAdmin.builder().serviceHttpUrl(...)}. */
    public String getHttpServiceUrl() {
        return "http://" + getHost() + ":" + getMappedPort(BROKER_HTTP_PORT);
    }

    @Override
    protected void configure() {
        List<String> command = new ArrayList<>(List.of("ackgate"));
        command.addAll(arguments("/data", "0.0.0.0", getHost(), port, BROKER_HTTP_PORT, settings));
        setCommand(command.toArray(String[]::new));
    }

    /** What follows the word ackgate. */
    static List<String> arguments(
            String data, String bind, String host, int port, int httpPort, Map<String, String> settings) {
        List<String> arguments = new ArrayList<>(List.of("broker", "--data-dir", data, "--bind", bind));
        arguments.addAll(List.of("--port", String.valueOf(port), "--http-port", String.valueOf(httpPort)));
        arguments.addAll(List.of("--set", "advertisedAddress=" + host));
        settings.forEach((key, value) -> arguments.addAll(List.of("--set", key + "=" + value)));
        return arguments;
    }

    private static int freePort() {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
