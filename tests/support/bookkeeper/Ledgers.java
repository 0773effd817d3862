// BookKeeper's Java client, asked by the tests: a question a line on standard input, as arguments.
//
//   write DIGEST PASSWORD ENSEMBLE WRITE ACK COUNT close|leave    answers with the ledger's id
//   read  DIGEST PASSWORD LEDGER recover|look                     a line for each entry: id, length, CRC-32
//
// An answer's lines begin with a colon, its end is a full stop; what went wrong is a line that begins
// with an exclamation mark. The argument of the program is the cluster's URI.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
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
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            // A client for each question: a writer that leaves is gone with it, without a word.
            try (BookKeeper client = BookKeeper.newBuilder(configuration).build()) {
                String[] words = line.split(" ");
                DigestType digest = DigestType.valueOf(words[1]);
                byte[] password = words[2].getBytes(StandardCharsets.UTF_8);
                if (words[0].equals("write")) {
                    write(client, digest, password, words);
                } else {
                    read(client, digest, password, Long.parseLong(words[3]), words[4].equals("recover"));
                }
            } catch (Exception error) {
                System.out.println("!" + error);
            }
            System.out.println(".");
            System.out.flush();
        }
    }

    private static void write(BookKeeper client, DigestType digest, byte[] password, String[] words) throws Exception {
        WriteHandle writer = client.newCreateLedgerOp()
                .withDigestType(digest).withPassword(password)
                .withEnsembleSize(Integer.parseInt(words[3]))
                .withWriteQuorumSize(Integer.parseInt(words[4]))
                .withAckQuorumSize(Integer.parseInt(words[5]))
                .execute().get();
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
}
