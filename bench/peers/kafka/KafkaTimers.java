package org.apache.kafka.server.util.timer; // its classes are not public

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.utils.Time;

/**
 * Kafka's wheel without its threads: add, cancel in random order, expire all. COUNT WHEEL_SIZE ROUNDS.
 * Prints "add cancel expire" in nanoseconds a timer, the best of the rounds after one to warm up.
 */
public class KafkaTimers {
    static final long HORIZON_MS = 600_000;
    static int fired;

    static class Task extends TimerTask {
        Task(long delayMs) {
            super(delayMs);
        }

        @Override
        public void run() {
            fired++;
        }
    }

    static class Wheel {
        final AtomicInteger size = new AtomicInteger();
        final DelayQueue<TimerTaskList> slots = new DelayQueue<>();
        final TimingWheel wheel;

        Wheel(int slotCount, long startMs) {
            wheel = new TimingWheel(1L, slotCount, startMs, size, slots);
        }

        TimerTask add(long deadlineMs) {
            TimerTask task = new Task(0);
            addEntry(new TimerTaskEntry(task, deadlineMs));
            return task;
        }

        void addEntry(TimerTaskEntry entry) {
            if (!wheel.add(entry) && !entry.cancelled()) {
                entry.timerTask.run();
            }
        }

        void expireAll() {
            for (TimerTaskList slot = slots.poll(); slot != null; slot = slots.poll()) {
                wheel.advanceClock(slot.getExpiration());
                slot.flush(this::addEntry);
            }
        }
    }

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        int slotCount = Integer.parseInt(arguments[1]);
        int rounds = Integer.parseInt(arguments[2]);
        double[] best = {1e18, 1e18, 1e18};
        for (int round = 0; round <= rounds; round++) {
            Random random = new Random(20261121);
            // All deadlines are past by the machine's clock, so that the queue gives them at once.
            long startMs = Time.SYSTEM.hiResClockMs() - HORIZON_MS - 10_000;
            long[] deadlines = random.longs(count, startMs + 1, startMs + HORIZON_MS).toArray();
            Wheel wheel = new Wheel(slotCount, startMs);
            List<TimerTask> tasks = new ArrayList<>(count);
            long began = System.nanoTime();
            for (long deadline : deadlines) {
                tasks.add(wheel.add(deadline));
            }
            double add = (System.nanoTime() - began) / (double) count;
            Collections.shuffle(tasks, random);
            began = System.nanoTime();
            for (TimerTask task : tasks) {
                task.cancel();
            }
            double cancel = (System.nanoTime() - began) / (double) count;
            if (wheel.size.get() != 0) {
                throw new IllegalStateException("left: " + wheel.size.get());
            }
            wheel = new Wheel(slotCount, startMs);
            for (long deadline : deadlines) {
                wheel.add(deadline);
            }
            fired = 0;
            began = System.nanoTime();
            wheel.expireAll();
            double expire = (System.nanoTime() - began) / (double) count;
            if (fired != count) {
                throw new IllegalStateException("fired: " + fired);
            }
            if (round > 0) {
                best[0] = Math.min(best[0], add);
                best[1] = Math.min(best[1], cancel);
                best[2] = Math.min(best[2], expire);
            }
        }
        System.out.printf("%.1f %.1f %.1f%n", best[0], best[1], best[2]);
    }
}
