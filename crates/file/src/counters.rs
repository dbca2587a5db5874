//! What the file layer measures.

base::metrics! {
    /// Counters and times of the file layer since the node was opened.
    file:
    lookups: Counter, Count, "look-ups of names";
    inode_loads: Counter, Count, "inodes loaded from the catalog";
    load: Histogram, Seconds, "an inode is looked for in the catalog, or neighbours together: tree nodes read, or found in memory";
    find: Histogram, Seconds, "a name is looked for in the tree of its directory: tree nodes read, or found in memory";
    reads: Counter, Count, "read calls";
    read_stored: Histogram, Seconds, "a read of what the write buffer does not have: extents found, chunks read or found in memory, and copied";
    read_bytes: Counter, Bytes, "bytes read";
    writes: Counter, Count, "write calls";
    write_bytes: Counter, Bytes, "bytes written";
    filled_bytes: Counter, Bytes, "bytes written that the daemon read itself, from a file that a command had open";
    write_wait: Histogram, Seconds, "a write waits for room in the write buffer; one that finds room is not counted";
    record_wait: Histogram, Seconds, "a change waits for a commit because the journal is far ahead; most never do";
    room_wait: Histogram, Seconds, "somebody waits for room on the disks: until the buffer is flushed, records committed, and what nobody needs given back";
    flushes_overtaken: Counter, Count, "files that a sync or a cut took back out of a running batch";
    flushes_again: Counter, Count, "batches that were put once more, for a disk failed before what was put was durable";
    flush_beginnings: Counter, Count, "times that a flush of a stream published what was settled of it, and went on";
    flush_extensions: Counter, Count, "times that the flush of a stream went on with what was accepted behind it meanwhile";
    flush: Histogram, Seconds, "a batch of files is flushed: cut, stored as chunks, settled, recorded";
    flush_cut: Histogram, Seconds, "a flush waits until the next group of chunks is cut; groups are cut beside the one before";
    flushed_bytes: Counter, Bytes, "bytes moved from the write buffer to chunks";
    inlined_bytes: Counter, Bytes, "bytes that an fsync put into the journal";
    flush_failures: Counter, Count, "flushes that failed; their data stays in memory";
    syncs_begun: Counter, Count, "writes after which the sync was begun that mostly follows; who syncs then waits for the rest of it";
    syncs_begun_vain: Counter, Count, "such syncs that nobody asked for before he wrote again";
    sync: Histogram, Seconds, "an fsync of a file: its data is flushed and the journal synced";
    namespace_changes: Counter, Count, "creates, links, removes and renames";
    batch_write: Histogram, Seconds, "a unit of a batch is written: admitted, stored, settled, recorded";
    batch_entries: Counter, Count, "entries that units of batches wrote";
    batch_bytes: Counter, Bytes, "bytes of content that units of batches wrote";
    batch_wait: Histogram, Seconds, "a batch that reads waits for memory, which others have; most do not wait";
    batch_read: Histogram, Seconds, "a batch of files is read, with what its caller takes to take it";
    batch_read_files: Counter, Count, "files that batches read";
    batch_read_bytes: Counter, Bytes, "bytes of content that batches read";
    batch_rereads: Counter, Count, "times that a batch read a file again because it had changed";
    siblings_ahead: Counter, Count, "small files read ahead of who reads the files of a directory";
    siblings_used: Counter, Count, "such files that were read later";
    siblings_wasted: Counter, Count, "such files that nobody read before their directory was given up or forgotten";
    walks_ahead: Counter, Count, "directories read ahead of who lists those of a directory";
    walks_used: Counter, Count, "such directories that were listed later";
    walks_wasted: Counter, Count, "such directories that nobody listed before their parent was given up or forgotten";
    layout_passes: Counter, Count, "passes of layout upkeep in the background that went through everything";
    layout_files: Counter, Count, "small files that layout upkeep looked at, in the background and on request";
    warmed_files: Counter, Count, "files that warm-ups read into memory";
    batch_torn: Counter, Count, "files that were written to each time that a batch read them";
    batch_walk: Histogram, Seconds, "a tree is walked, with what its caller takes to hear of it";
    batch_finds: Counter, Count, "paths of lists that were looked up together";
    batch_stats: Counter, Count, "attributes that walks and batches took from catalogs, without loading the inode";
    batch_compared: Counter, Count, "files and directories that comparisons of trees looked at on both sides";
    removing_trees: Counter, Count, "directories that were removed with everything below them in one go";
    removing_entries: Counter, Count, "names that went behind, in such directories";
    clones_made: Counter, Count, "directories cloned";
    branches_pruned: Counter, Count, "clones that let go of what lay beside what was cloned";
    chunks_sent: Counter, Count, "chunks that went to other nodes in streams";
    sent_bytes: Counter, Bytes, "bytes of such streams";
    chunks_received: Counter, Count, "chunks that came from other nodes in streams";
    received_bytes: Counter, Bytes, "bytes of such streams";
    commit: Histogram, Seconds, "records become trees and the superblock is switched";
    commit_inodes: Counter, Count, "inodes written by commits";
    files_left_out: Counter, Count, "files that commits began to leave out because their trees cannot be read";
    commit_failures: Counter, Count, "commits that failed; their records stay in the journal";
    commits_of_lost_frames: Counter, Count, "commits that were begun at once, for the disks that had a part of the journal failed";
    reclaim_pass: Histogram, Seconds, "a pass of reclaim, also one that only counts: what is needed is marked, the rest is given back";
    reclaim_failures: Counter, Count, "such passes that failed; what they had given back by then stays so";
}
