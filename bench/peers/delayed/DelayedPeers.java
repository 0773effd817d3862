import it.unimi.dsi.fastutil.longs.Long2ObjectAVLTreeMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectSortedMap;
import org.apache.pulsar.common.util.collections.TripleLongPriorityQueue;
import org.roaringbitmap.longlong.Roaring64Bitmap;

/**
 * Pulsar's two structures for delayed entries, as bench_delayed.py feeds ours: the heap of triples, and
 * the time buckets of apache/pulsar#23611 (its tracker's structure, without the tracker).
 *
 * Arguments: heap|buckets, runs|random, x, y, entries. Prints one line of JSON.
 */
public final class DelayedPeers {
    private static final int LEDGER_ENTRIES = 50_000;
    private static final long FIRST_MS = 1_700_003_600_000L;

    public static void main(String[] args) {
        boolean isHeap = args[0].equals("heap");
        boolean isRandom = args[1].equals("random");
        int x = Integer.parseInt(args[2]);
        long mask = -1L << Integer.parseInt(args[3]);
        int entries = Integer.parseInt(args[4]);
        fill(isHeap, isRandom, x, mask, Math.min(entries, 200_000));  // warm
        long before = used();
        long began = System.nanoTime();
        Object filled = fill(isHeap, isRandom, x, mask, entries);
        double addNs = (System.nanoTime() - began) / (double) entries;
        double heapMb = (used() - before) / 1e6;
        double ownMb;
        int count = Math.min(entries / 10, 1_000_000);
        long sum = 0;
        if (filled instanceof TripleLongPriorityQueue queue) {
            ownMb = queue.bytesCapacity() / 1e6;
            began = System.nanoTime();
            for (int i = 0; i < count; i++) {
                sum += queue.peekN3();
                queue.pop();
            }
        } else {
            var map = buckets(filled);
            long bytes = 0;
            for (var ledgers : map.values()) {
                for (Roaring64Bitmap bitmap : ledgers.values()) {
                    bytes += bitmap.getLongSizeInBytes();
                }
            }
            ownMb = bytes / 1e6;
            began = System.nanoTime();
            int left = count;
            while (left > 0) {
                long key = map.firstLongKey();
                for (var ledger : map.get(key).long2ObjectEntrySet()) {
                    var ids = ledger.getValue().getLongIterator();
                    while (ids.hasNext()) {
                        sum += ids.next();
                        left--;
                    }
                }
                map.remove(key);
            }
        }
        double popMs = (System.nanoTime() - began) / 1e6;
        System.out.printf("{\"add, ns an entry\": %.0f, \"own MB\": %.2f, \"Java heap MB\": %.2f, "
            + "\"pop %d, ms\": %.1f, \"sum\": %d}%n", addNs, ownMb, heapMb, count, popMs, sum);
    }

    private static Object fill(boolean isHeap, boolean isRandom, int x, long mask, int entries) {
        TripleLongPriorityQueue queue = isHeap ? new TripleLongPriorityQueue() : null;
        Long2ObjectSortedMap<Long2ObjectSortedMap<Roaring64Bitmap>> map = new Long2ObjectAVLTreeMap<>();
        for (int i = 0; i < entries; i++) {
            int number = isRandom ? (int) ((i * 7_368_787L + 1_299_709L) % entries) : i;
            long time = FIRST_MS + number / x;
            long ledgerId = 10_000 + i / LEDGER_ENTRIES;
            long entryId = i % LEDGER_ENTRIES;
            if (isHeap) {
                queue.add(time, ledgerId, entryId);
            } else {
                map.computeIfAbsent(time & mask, k -> new Long2ObjectAVLTreeMap<>())
                    .computeIfAbsent(ledgerId, k -> new Roaring64Bitmap())
                    .add(entryId);
            }
        }
        return isHeap ? queue : map;
    }

    @SuppressWarnings("unchecked")
    private static Long2ObjectSortedMap<Long2ObjectSortedMap<Roaring64Bitmap>> buckets(Object filled) {
        return (Long2ObjectSortedMap<Long2ObjectSortedMap<Roaring64Bitmap>>) filled;
    }

    private static long used() {
        for (int i = 0; i < 3; i++) {
            System.gc();
        }
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }
}
