//! What the store measures.

base::metrics! {
    /// Counters and times of the store since it was opened.
    store:
    chunks_put: Counter, Count, "chunks given to put or put_many";
    chunks_duplicate: Counter, Count, "chunks put that were there already";
    put_bytes: Counter, Bytes, "content bytes given to put or put_many";
    new_bytes: Counter, Bytes, "content bytes of chunks that were not there yet";
    stored_bytes: Counter, Bytes, "bytes those chunks take in packs, after compression, with their headers";
    group_hash: Histogram, Seconds, "a group of chunks is hashed on all cores";
    group_compress: Histogram, Seconds, "the new chunks of a group are compressed on all cores";
    group_append: Histogram, Seconds, "the new chunks of a group are appended to packs; large buffers are written out";
    chunks_incompressible: Counter, Count, "chunks stored raw because compression saved less than a sixteenth";
    put_busy: Counter, Count, "groups of chunks that found the store busy";
    put_wait: Histogram, Seconds, "a group of chunks waits while the store is busy";
    chunks_read: Counter, Count, "chunks asked for by get";
    cache_metadata_hits: Counter, Count, "chunks of trees that get found in the cache";
    cache_metadata_misses: Counter, Count, "chunks of trees that get did not find in the cache";
    cache_data_hits: Counter, Count, "chunks of file content that get found in the cache";
    cache_data_misses: Counter, Count, "chunks of file content that get did not find in the cache";
    cache_evictions: Counter, Count, "chunks that left the cache for others";
    prefetched_chunks: Counter, Count, "chunks read before anybody wanted them";
    prefetched_used: Counter, Count, "such chunks that somebody wanted later, and found";
    prefetched_unused: Counter, Count, "such chunks that left the cache before anybody wanted them";
    chunk_read: Histogram, Seconds, "a chunk that the cache lacks is looked up, read, decompressed and verified";
    ordered_runs: Counter, Count, "runs of chunks read in the order in which they lie, each by one request";
    ordered_gap_bytes: Counter, Bytes, "bytes of such runs that nobody wanted: they lie between the chunks";
    ordered_alone: Counter, Count, "chunks that were to be read so and were read alone: nobody knew where they lie, or a run did not give them";
    groups_read: Counter, Count, "groups of chunks that were read by themselves: somebody wanted a part of a chunk";
    read_bytes: Counter, Bytes, "bytes read from packs for get";
    prefetched_bytes: Counter, Bytes, "bytes of metadata packs that the disk was asked for before anybody wanted them";
    verify_failures: Counter, Count, "chunks read from a pack that were not what their address says";
    other_copies: Counter, Count, "reads of a chunk from another place, because the one that the index names did not verify";
    index_lookups: Counter, Count, "look-ups that had to ask the index file";
    index_commits: Counter, Count, "batches of entries committed to the index file";
    index_entries: Counter, Count, "entries committed to the index file";
    index_failures: Counter, Count, "index commits that failed or were put off; the entries stay in memory";
    index_made_again: Counter, Count, "times the index turned out to be damaged and was made again from the packs, beside the work";
    packs_created: Counter, Count, "packs begun";
    packs_sealed: Counter, Count, "packs sealed";
    packs_deleted: Counter, Count, "packs deleted by reclaim";
    pack_writes: Counter, Count, "writes to packs";
    pack_disks_left: Counter, Count, "times a pack went on without one of its disks, which had failed";
    reads_of_copies: Counter, Count, "reads of a pack from another of its disks, because the first failed, or gave something else";
    reads_made: Counter, Count, "reads of a pack in fragments that were made of others, or verified block by block, because one failed, is gone, or gave something else";
    pack_syncs: Counter, Count, "syncs of packs";
    settle: Histogram, Seconds, "chunks that were put become durable: packs are written out and synced";
    log_frames: Counter, Count, "frames logged";
    log_bytes: Counter, Bytes, "bytes of frames logged, with headers";
    log_wait: Histogram, Seconds, "somebody waits until frames are durable; who finds them so is not counted";
    log_sync: Histogram, Seconds, "a run of frames is written to the journal and synced";
    log_sync_frames: Histogram, Count, "frames of such a run: how many share one sync";
    log_homes_changed: Counter, Count, "times the journal took another disk, for one of its own had failed";
    log_segments_created: Counter, Count, "journal segments made and filled with zeroes";
    log_segments_recycled: Counter, Count, "journal segments used again";
    superblock_write: Histogram, Seconds, "a superblock is written and synced";
    disk_failures: Counter, Count, "disks taken out after a failed write or sync";
    disk_reads_failed: Counter, Count, "reads of chunks that a disk failed, or answered with other bytes than it was given";
    scrubbed_bytes: Counter, Bytes, "bytes of packs that scrub read again";
    scrub_problems: Counter, Count, "things that scrub found wrong, each time it found them";
    copies_written: Counter, Count, "files of packs written to a further disk, or again to one that had it damaged";
    copied_bytes: Counter, Bytes, "bytes of those";
    packs_cut: Counter, Count, "packs that were cut into fragments, whose copies went then";
    fragments_written: Counter, Count, "fragments of packs written";
    fragment_bytes: Counter, Bytes, "bytes of those";
    reclaimed_bytes: Counter, Bytes, "bytes of packs that reclaim gave back";
    reclaim_copied_bytes: Counter, Bytes, "bytes that reclaim copied to other packs";
}
