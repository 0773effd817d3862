package ackgate.testing;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The real Java client by TLS, with tokens and certificates, against a broker that looks up permissions. */
class SecuredBrokerTest {

    private static final AckgateCredentials CREDENTIALS = AckgateCredentials.make();

    @RegisterExtension
    static final AckgateExtension ACKGATE = new AckgateExtension(broker -> broker.settings(CREDENTIALS.tokenSettings())
            .settings(CREDENTIALS.tlsSettings())
            .setting(
                    "authenticationProviders",
                    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken,"
                            + "org.apache.pulsar.broker.authentication.AuthenticationProviderTls")
            .setting("authorizationEnabled", true)
            .setting("superUserRoles", "admin"));

    @AfterAll
    static void removeCredentials() {
        CREDENTIALS.close();
    }

    private static PulsarClient client(AckgateProcess broker, Authentication authentication) throws Exception {
        return PulsarClient.builder()
                .serviceUrl(broker.serviceUrlTls())
                .tlsTrustCertsFilePath(CREDENTIALS.authority().toString())
                .enableTlsHostnameVerification(true)
                .authentication(authentication)
                .build();
    }

    private static Authentication token(String role) {
        return AuthenticationFactory.token(CREDENTIALS.token(role));
    }

    private static Authentication certificate(String name) {
        return AuthenticationFactory.TLS(
                CREDENTIALS.certificate(name).toString(), CREDENTIALS.key(name).toString());
    }

    private static void sendsAndReceives(PulsarClient client, AckgateTopic topic) throws Exception {
        try (Consumer<String> consumer = client.newConsumer(Schema.STRING)
                        .topic(topic.name())
                        .subscriptionName("billing")
                        .isAckReceiptEnabled(true)
                        .subscribe();
                Producer<String> producer =
                        client.newProducer(Schema.STRING).topic(topic.name()).create()) {
            producer.send("order 1");
            var message = consumer.receive(10, TimeUnit.SECONDS);
            assertEquals("order 1", message.getValue());
            consumer.acknowledge(message);
        }
    }

    private static void grant(AckgateProcess broker, String role) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(
                        URI.create(broker.adminUrl() + "/admin/v2/namespaces/public/default/permissions/" + role))
                .header("Authorization", "Bearer " + CREDENTIALS.token("admin"))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString("[\"produce\", \"consume\"]"))
                .build();
        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        assertEquals(204, answer.statusCode(), answer.body());
    }

    @Test
    void aRoleMayDoWhatItWasPermitted(AckgateProcess broker, AckgateTopic topic) throws Exception {
        try (PulsarClient stranger = client(broker, token("stranger"))) {
            assertThrows(
                    PulsarClientException.AuthorizationException.class,
                    () -> stranger.newProducer().topic(topic.name()).create());
            grant(broker, "app");
            try (PulsarClient app = client(broker, token("app"))) {
                sendsAndReceives(app, topic);
            }
            assertThrows(
                    PulsarClientException.AuthorizationException.class,
                    () -> stranger.newProducer().topic(topic.name()).create());
        }
    }

    @Test
    void aCertificateNamesARole(AckgateProcess broker, AckgateTopic topic) throws Exception {
        try (PulsarClient admin = client(broker, certificate("admin"))) {
            sendsAndReceives(admin, topic);
        }
        try (PulsarClient client = client(broker, certificate("client"))) {
            assertThrows(
                    PulsarClientException.AuthorizationException.class,
                    () -> client.newProducer().topic(topic.name()).create());
        }
    }

    @Test
    void aTokenOfAnotherSecretIsRefused(AckgateProcess broker, AckgateTopic topic) throws Exception {
        try (AckgateCredentials others = AckgateCredentials.make();
                PulsarClient client = client(broker, AuthenticationFactory.token(others.token("admin")))) {
            assertThrows(
                    PulsarClientException.AuthenticationException.class,
                    () -> client.newProducer().topic(topic.name()).create());
        }
    }

    @Test
    void credentialsThatWereNotMadeAreNamed() {
        Exception error = assertThrows(IllegalArgumentException.class, () -> CREDENTIALS.certificate("nobody"));
        assertEquals("no client nobody, only [client, admin]", error.getMessage());
    }
}
