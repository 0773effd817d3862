// Pulsar's two structures of negative acks, alone: the hash map of before PIP-393 and its sorted map of bitmaps.
//   java -Xmx4g -cp 'LIB/*' NackMaps.java old|new runs|shuffled|random ENTRIES BITS      -> one line of JSON
// Entries, times and orders are those of bench/bench_nacks.py: 10 nacks a ms, ledgers of 50,000, an hour's delay.

import it.unimi.dsi.fastutil.longs.Long2ObjectAVLTreeMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectOpenHashMap;
import java.lang.ref.Reference;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.pulsar.common.util.collections.ConcurrentLongLongPairHashMap;
import org.roaringbitmap.longlong.Roaring64Bitmap;

public class NackMaps {
    static final long NOW = 1_700_000_000_000L, DELAY = 3_600_000, LEDGER = 50_000, PER_MS = 10;

    interface Subject {
        void add(long ledger, long entry, long deadline);

        long popThrough(long deadline); // how many
    }

    static class OldMap implements Subject {
        final ConcurrentLongLongPairHashMap map =
                ConcurrentLongLongPairHashMap.newBuilder().autoShrink(true).concurrencyLevel(1).build();

        public void add(long ledger, long entry, long deadline) {
            map.put(ledger, entry, Integer.MAX_VALUE, deadline); // as a topic without partitions
        }

        public long popThrough(long deadline) { // every third of the delay, all of it
            List<long[]> due = new ArrayList<>();
            map.forEach((ledger, entry, partition, at) -> {
                if (at <= deadline) {
                    due.add(new long[] {ledger, entry});
                }
            });
            for (long[] each : due) {
                map.remove(each[0], each[1]);
            }
            return due.size();
        }
    }

    static class NewMap implements Subject {
        final Long2ObjectAVLTreeMap<Long2ObjectMap<Roaring64Bitmap>> map = new Long2ObjectAVLTreeMap<>();
        final long mask;

        NewMap(int bits) {
            mask = -1L << bits;
        }

        public void add(long ledger, long entry, long deadline) {
            map.computeIfAbsent(deadline & mask, key -> new Long2ObjectOpenHashMap<>())
                    .computeIfAbsent(ledger, key -> new Roaring64Bitmap()).add(entry);
        }

        public long popThrough(long deadline) {
            List<long[]> due = new ArrayList<>();
            while (!map.isEmpty() && map.firstLongKey() <= deadline) {
                map.remove(map.firstLongKey())
                        .forEach((ledger, entries) -> entries.forEach(entry -> due.add(new long[] {ledger, entry})));
            }
            return due.size();
        }
    }

    static long heap() throws InterruptedException {
        for (int i = 0; i < 3; i++) {
            System.gc();
            Thread.sleep(100);
        }
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    static long resident() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmRSS")) {
                return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
            }
        }
        return 0;
    }

    static double fill(Subject subject, int[] order, int[] times) {
        long began = System.nanoTime();
        for (int i = 0; i < order.length; i++) {
            long n = order[i];
            subject.add(10_000 + n / LEDGER, n % LEDGER, NOW + DELAY + times[i] / PER_MS);
        }
        return (System.nanoTime() - began) / (double) order.length;
    }

    public static void main(String[] args) throws Exception {
        int entries = Integer.parseInt(args[2]), bits = Integer.parseInt(args[3]);
        int[] order = new int[entries], times = new int[entries];
        for (int i = 0; i < entries; i++) {
            order[i] = times[i] = i;
        }
        Random random = new Random(20261121);
        if (!args[1].equals("runs")) {
            for (int i = entries - 1; i > 0; i--) {
                int j = random.nextInt(i + 1), n = order[i];
                order[i] = order[j];
                order[j] = n;
            }
            for (int i = 0; i < entries; i++) {
                times[i] = args[1].equals("shuffled") ? order[i] : random.nextInt((int) (DELAY * PER_MS));
            }
        }
        for (int i = 0; i < 5; i++) { // the compiler warms up
            Subject warm = args[0].equals("old") ? new OldMap() : new NewMap(bits);
            int[] part = java.util.Arrays.copyOf(order, Math.min(entries, 200_000));
            fill(warm, part, part);
            warm.popThrough(Long.MAX_VALUE);
        }
        long before = heap();
        Subject subject = args[0].equals("old") ? new OldMap() : new NewMap(bits);
        double addNs = fill(subject, order, times);
        double heapMb = (heap() - before) / 1e6, residentMb = resident() / 1e6;
        Reference.reachabilityFence(order); // they were in the heap before, too
        Reference.reachabilityFence(times);
        long middle = NOW + DELAY + (args[1].equals("random") ? DELAY / 100 : entries / PER_MS / 100);
        long began = System.nanoTime();
        long hundredth = subject.popThrough(middle);
        double firstMs = (System.nanoTime() - began) / 1e6;
        began = System.nanoTime();
        long rest = subject.popThrough(Long.MAX_VALUE);
        double restMs = (System.nanoTime() - began) / 1e6;
        System.out.printf("{\"add, ns an entry\": %.0f, \"heap MB\": %.3f, \"process resident MB\": %.0f, "
                + "\"pop the first %d, ms\": %.2f, \"pop the other %d, ms\": %.1f}%n",
                addNs, heapMb, residentMb, hundredth, firstMs, rest, restMs);
    }
}
