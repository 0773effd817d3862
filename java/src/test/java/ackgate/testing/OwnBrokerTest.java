package ackgate.testing;

import static org.junit.jupiter.api.Assertions.assertThrows;

import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A broker with settings, for one class. */
class OwnBrokerTest {

    @RegisterExtension
    static final AckgateExtension ACKGATE =
            new AckgateExtension(broker -> broker.setting("allowAutoTopicCreation", false));

    @Test
    void hasItsSettings(AckgateProcess broker, AckgateTopic topic) throws Exception {
        try (PulsarClient client =
                PulsarClient.builder().serviceUrl(broker.serviceUrl()).build()) {
            assertThrows(
                    PulsarClientException.class,
                    () -> client.newProducer().topic(topic.name()).create());
        }
    }
}
