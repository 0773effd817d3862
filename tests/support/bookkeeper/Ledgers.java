// BookKeeper's Java client, asked by the tests: a question a line on standard input, as arguments.
//
//   write DIGEST PASSWORD ENSEMBLE WRITE ACK COUNT close|leave    answers with the ledger's id
//   read  DIGEST PASSWORD LEDGER recover|look                     a line for each entry: id, length, CRC-32
//   adds  DIGEST PASSWORD ENSEMBLE WRITE ACK BYTES SECONDS UNANSWERED
//                                                                 id, entries, seconds, ms of the median and of 99 %
//   steady DIGEST PASSWORD ENSEMBLE WRITE ACK BYTES SECONDS PER_SECOND
//                                                                 the same, from the moment at which an add was due
//   scan  DIGEST PASSWORD LEDGER STEP                             seconds; STEP entries a call, or all in batches: 0
//   open  DIGEST PASSWORD LEDGER                                  seconds of opening with recovery
//
// An answer's lines begin with a colon, its end is a full stop; what went wrong is a line that begins
// with an exclamation mark. The argument of the program is the cluster's URI.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public class Ledgers {
    public static void main(String[] args) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(args[0]);
        configuration.setUseV2WireProtocol(true);
        configuration.setThrottleValue(0); // as Pulsar has it; by default 5,000 requests a second
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            // A client for each question: a writer that leaves is gone with it, without a word.
            try (BookKeeper client = BookKeeper.newBuilder(configuration).build()) {
                String[] words = line.split(" ");
                DigestType digest = DigestType.valueOf(words[1]);
                byte[] password = words[2].getBytes(StandardCharsets.UTF_8);
                switch (words[0]) {
                    case "write" -> write(client, digest, password, words);
                    case "read" -> read(client, digest, password, Long.parseLong(words[3]), words[4].equals("recover"));
                    case "adds" -> adds(client, digest, password, words);
                    case "steady" -> steady(client, digest, password, words);
                    case "scan" -> scan(client, digest, password, Long.parseLong(words[3]), Integer.parseInt(words[4]));
                    case "open" -> open(client, digest, password, Long.parseLong(words[3]));
                    default -> throw new IllegalArgumentException(words[0]);
                }
            } catch (Exception error) {
                System.out.println("!" + error);
            }
            System.out.println(".");
            System.out.flush();
        }
    }

    private static WriteHandle create(BookKeeper client, DigestType digest, byte[] password, String[] words)
            throws Exception {
        return client.newCreateLedgerOp()
                .withDigestType(digest).withPassword(password)
                .withEnsembleSize(Integer.parseInt(words[3]))
                .withWriteQuorumSize(Integer.parseInt(words[4]))
                .withAckQuorumSize(Integer.parseInt(words[5]))
                .execute().get();
    }

    private static void write(BookKeeper client, DigestType digest, byte[] password, String[] words) throws Exception {
        WriteHandle writer = create(client, digest, password, words);
        for (int i = 0; i < Integer.parseInt(words[6]); i++) {
            writer.append(("entry " + i).getBytes(StandardCharsets.UTF_8));
        }
        System.out.println(":" + writer.getId());
        if (words[7].equals("close")) {
            writer.close();
        }
    }

    private static void read(BookKeeper client, DigestType digest, byte[] password, long id, boolean recovers)
            throws Exception {
        try (ReadHandle reader = client.newOpenLedgerOp().withLedgerId(id)
                .withDigestType(digest).withPassword(password).withRecovery(recovers).execute().get()) {
            long last = reader.getLastAddConfirmed();
            if (last < 0) {
                return;
            }
            try (LedgerEntries entries = reader.read(0, last)) {
                for (LedgerEntry entry : entries) {
                    CRC32 crc = new CRC32();
                    crc.update(entry.getEntryBytes());
                    System.out.println(":" + entry.getEntryId() + " " + entry.getEntryBytes().length + " " + crc.getValue());
                }
            }
        }
    }

    private static void adds(BookKeeper client, DigestType digest, byte[] password, String[] words) throws Exception {
        WriteHandle writer = create(client, digest, password, words);
        byte[] payload = new byte[Integer.parseInt(words[6])];
        int unanswered = Integer.parseInt(words[8]);
        Semaphore room = new Semaphore(unanswered);
        AtomicInteger done = new AtomicInteger();
        long[] nanos = new long[20_000_000];
        long begun = System.nanoTime();
        long end = begun + (long) (Double.parseDouble(words[7]) * 1e9);
        while (System.nanoTime() < end) {
            room.acquire();
            long sent = System.nanoTime();
            writer.appendAsync(payload).whenComplete((id, error) -> {
                nanos[done.getAndIncrement()] = System.nanoTime() - sent;
                room.release();
            });
        }
        room.acquire(unanswered);
        double seconds = (System.nanoTime() - begun) / 1e9;
        int count = done.get();
        report(writer, nanos, count, seconds);
    }

    private static void steady(BookKeeper client, DigestType digest, byte[] password, String[] words) throws Exception {
        WriteHandle writer = create(client, digest, password, words);
        byte[] payload = new byte[Integer.parseInt(words[6])];
        double seconds = Double.parseDouble(words[7]);
        long perSecond = Long.parseLong(words[8]);
        int count = (int) (seconds * perSecond);
        AtomicInteger done = new AtomicInteger();
        CountDownLatch all = new CountDownLatch(count);
        long[] nanos = new long[count];
        long begun = System.nanoTime();
        for (int i = 0; i < count; Thread.sleep(1)) {
            for (long due = (System.nanoTime() - begun) * perSecond / 1_000_000_000L; i < Math.min(due, count); i++) {
                long at = begun + i * 1_000_000_000L / perSecond;
                writer.appendAsync(payload).whenComplete((id, error) -> {
                    nanos[done.getAndIncrement()] = System.nanoTime() - at;
                    all.countDown();
                });
            }
        }
        all.await();
        report(writer, nanos, count, seconds);
    }

    private static void report(WriteHandle writer, long[] nanos, int count, double seconds) throws Exception {
        Arrays.sort(nanos, 0, count);
        System.out.println(":" + writer.getId() + " " + count + " " + seconds + " "
                + nanos[count / 2] / 1e6 + " " + nanos[(int) (count * 0.99)] / 1e6);
        writer.close();
    }

    private static void scan(BookKeeper client, DigestType digest, byte[] password, long id, int step) throws Exception {
        try (ReadHandle reader = client.newOpenLedgerOp().withLedgerId(id)
                .withDigestType(digest).withPassword(password).execute().get()) {
            long begun = System.nanoTime();
            long next = 0;
            while (next <= reader.getLastAddConfirmed()) {
                long last = Math.min(next + step - 1, reader.getLastAddConfirmed());
                try (LedgerEntries entries = step > 0 ? reader.read(next, last) : reader.batchRead(next, 10_000, 5 << 20)) {
                    for (LedgerEntry entry : entries) {
                        next = entry.getEntryId() + 1;
                    }
                }
            }
            System.out.println(":" + (System.nanoTime() - begun) / 1e9);
        }
    }

    private static void open(BookKeeper client, DigestType digest, byte[] password, long id) throws Exception {
        long begun = System.nanoTime();
        client.newOpenLedgerOp().withLedgerId(id).withDigestType(digest).withPassword(password).withRecovery(true)
                .execute().get().close();
        System.out.println(":" + (System.nanoTime() - begun) / 1e9);
    }
}
