package ackgate.testing;

import java.util.Locale;
import java.util.UUID;
import java.util.function.Consumer;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ExtensionContext.Namespace;
import org.junit.jupiter.api.extension.ExtensionContext.Store.CloseableResource;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * A broker for JUnit 5. With an annotation, all classes of a test run share one:
 *
 * <pre>{@code
 * @ExtendWith(AckgateExtension.class)
 * class OrdersTest {
 *     @Test
 *     void billsEveryOrder(AckgateProcess broker, AckgateTopic topic) { ... }
 * }
 * }</pre>
 *
 * <p>A broker with settings belongs to its class:
 *
 * <pre>{@code
 * @RegisterExtension
 * static final AckgateExtension ACKGATE =
 *         new AckgateExtension(broker -> broker.setting("brokerDeduplicationEnabled", true));
 * }</pre>
 *
 * <p>Each test gets a topic that no other test uses. After a failed test the broker's log is written to standard error.
 */
public final class AckgateExtension implements BeforeAllCallback, ParameterResolver, AfterTestExecutionCallback {

    private static final Namespace SHARED = Namespace.create(AckgateExtension.class);

    private final Consumer<AckgateProcess.Builder> describe;

    /** The broker that all classes share. */
    public AckgateExtension() {
        this(null);
    }

    /** A broker of its own, described by this. */
    public AckgateExtension(Consumer<AckgateProcess.Builder> describe) {
        this.describe = describe;
    }

    @Override
    public void beforeAll(ExtensionContext context) {
        running(context);
    }

    @Override
    public void afterTestExecution(ExtensionContext context) {
        context.getExecutionException().ifPresent(error -> {
            System.err.println("---- log of the broker, after the failed test " + context.getDisplayName());
            System.err.println(running(context).broker().log());
        });
    }

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        Class<?> wanted = parameter.getParameter().getType();
        return wanted == AckgateProcess.class || wanted == AckgateTopic.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        if (parameter.getParameter().getType() == AckgateProcess.class) {
            return running(context).broker();
        }
        String test = context.getTestMethod().map(method -> method.getName()).orElse("topic");
        String name = test.toLowerCase(Locale.ROOT) + "-" + UUID.randomUUID();
        return new AckgateTopic("persistent://public/default/" + name);
    }

    private Running running(ExtensionContext context) {
        if (describe == null) {
            return context.getRoot().getStore(SHARED).getOrComputeIfAbsent(Running.class, key -> start(), Running.class);
        }
        ExtensionContext ofClass = context;
        while (ofClass.getTestMethod().isPresent()) {
            ofClass = ofClass.getParent().orElseThrow();
        }
        return ofClass.getStore(SHARED).getOrComputeIfAbsent(this, key -> start(), Running.class);
    }

    private Running start() {
        AckgateProcess.Builder builder = AckgateProcess.builder();
        if (describe != null) {
            describe.accept(builder);
        }
        return new Running(builder.start());
    }

    /** JUnit closes it with the store that holds it. */
    private record Running(AckgateProcess broker) implements CloseableResource {
        @Override
        public void close() {
            broker.close();
        }
    }
}
