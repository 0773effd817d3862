package ackgate.testing;

/**
 * A topic of one test.
 *
 * @param name the full name
 */
public record AckgateTopic(String name) {
    @Override
    public String toString() {
        return name;
    }
}
