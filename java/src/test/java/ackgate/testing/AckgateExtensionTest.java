package ackgate.testing;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

/** The real Java client against the broker of the extension. */
@ExtendWith(AckgateExtension.class)
class AckgateExtensionTest {

    private static Consumer<String> consumer(PulsarClient client, AckgateTopic topic) throws Exception {
        return client.newConsumer(Schema.STRING)
                .topic(topic.name())
                .subscriptionName("billing")
                .subscriptionType(SubscriptionType.Shared)
                .isAckReceiptEnabled(true)
                .subscribe();
    }

    private static void send(PulsarClient client, AckgateTopic topic, String... texts) throws Exception {
        try (Producer<String> producer =
                client.newProducer(Schema.STRING).topic(topic.name()).create()) {
            for (String text : texts) {
                producer.send(text);
            }
        }
    }

    @Test
    void whatWasAckedDoesNotComeAgainAfterKill(AckgateProcess broker, AckgateTopic topic) throws Exception {
        String before = broker.serviceUrl();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(before).build()) {
            try (Consumer<String> consumer = consumer(client, topic)) {
                send(client, topic, "order 1", "order 2", "order 3");
                consumer.acknowledge(consumer.receive(10, TimeUnit.SECONDS));
                consumer.receive(10, TimeUnit.SECONDS);
                consumer.acknowledge(consumer.receive(10, TimeUnit.SECONDS)); // beyond a hole
            }
        }
        broker.kill();
        assertFalse(broker.isRunning());
        broker.start();
        assertEquals(before, broker.serviceUrl());
        try (PulsarClient client = PulsarClient.builder().serviceUrl(before).build();
                Consumer<String> consumer = consumer(client, topic)) {
            assertEquals("order 2", consumer.receive(10, TimeUnit.SECONDS).getValue());
            send(client, topic, "order 4");
            assertEquals("order 4", consumer.receive(10, TimeUnit.SECONDS).getValue());
        }
    }

    @Test
    void eachTestHasATopicOfItsOwn(AckgateTopic one, AckgateTopic other) {
        assertNotEquals(one, other);
        assertTrue(one.name().startsWith("persistent://public/default/eachtesthasatopicofitsown-"));
    }

    @Test
    void aBrokerThatCannotStartSaysWhy() {
        AckgateProcess.Builder builder = AckgateProcess.builder().setting("managedLedgerMaxUnackedRangesToPersist", -5);
        IllegalStateException error = assertThrows(IllegalStateException.class, builder::start);
        assertTrue(error.getMessage().contains("managedLedgerMaxUnackedRangesToPersist"), error.getMessage());
        AckgateProcess.Builder nothing = AckgateProcess.builder().command("no-such-command");
        error = assertThrows(IllegalStateException.class, nothing::start);
        assertTrue(error.getMessage().contains(AckgateProcess.COMMAND_VARIABLE), error.getMessage());
    }
}
