package ackgate.testing;

import static org.junit.jupiter.api.Assertions.assertNotNull;

import java.io.BufferedReader;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.io.TempDir;
import org.testcontainers.utility.DockerImageName;

/** The container, with an image that {@code -Dackgate.image=NAME} names; its command line also without Docker. */
class AckgateContainerTest {

    private static void publish(String serviceUrl) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(serviceUrl).build();
                Producer<byte[]> producer = client.newProducer().topic("orders").create()) {
            assertNotNull(producer.send(new byte[] {1}));
        }
    }

    @Test
    @EnabledIfSystemProperty(named = "ackgate.image", matches = ".+")
    void publishesToAContainer() throws Exception {
        DockerImageName image = DockerImageName.parse(System.getProperty("ackgate.image"));
        try (AckgateContainer broker = new AckgateContainer(image).withSetting("allowAutoTopicCreation", true)) {
            broker.start();
            publish(broker.getPulsarBrokerUrl());
        }
    }

    @Test
    void brokerTakesTheCommandLineOfTheContainer(@TempDir Path data) throws Exception {
        List<String> line = new ArrayList<>(AckgateProcess.defaultCommand());
        Map<String, String> settings = Map.of("allowAutoTopicCreation", "true");
        line.addAll(AckgateContainer.arguments(data.toString(), "127.0.0.1", "localhost", 0, 0, settings));
        Process broker = new ProcessBuilder(line)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        try (BufferedReader output = broker.inputReader()) {
            String ready = output.readLine();
            assertNotNull(ready);
            publish(ready.split(" ")[2]);
        } finally {
            broker.destroyForcibly().waitFor();
        }
    }
}
