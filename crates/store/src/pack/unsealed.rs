//! The last step of a pack, and packs that wait for it: all their chunks are durable, and their directory found no room.
//!
//! They stay open, take no more, and are tried again whenever packs are to be sealed; else the next opening finds them.
//!
//! Not here: what comes before the directory (`seal`).

use platform::disk::DiskErrorKind;

use super::{Packs, Writer};
use crate::format::{Summary, encode_directory};
use crate::index::SealedPack;

impl Packs {
    /// Writes the directory of a pack whose chunks are durable (K-2). `false` if its disks could not; where they are full it waits.
    pub(super) async fn end_with_directory(&self, mut writer: Writer) -> bool {
        let pack = writer.pack.clone();
        let data_bytes = u32::try_from(writer.end()).expect("at most PACK_BYTES_MAX");
        let directory = encode_directory(pack.number, data_bytes, &writer.entries);
        // Each time round but the last it leaves a disk that failed.
        while let Err((disk, error)) = pack.append_directory(writer.end(), &directory, &self.counters).await {
            let is_full = error.kind == DiskErrorKind::Full;
            let _ = self.pool.failed(disk, error, &self.counters);
            if is_full {
                self.unsealed.lock().push(writer);
                return true;
            }
            if !self.leave_failed(&mut writer) {
                return false;
            }
        }
        let summary = Summary::of(data_bytes, &writer.entries, pack.summary().level);
        self.note_sealed(SealedPack::new(pack.number, summary, writer.entries), pack.disks());
        true
    }

    /// Tries again. Whether one was sealed.
    pub(crate) async fn seal_unsealed(&self) -> bool {
        let (mut is_any, count) = (false, self.unsealed.lock().len());
        for _ in 0..count {
            let Some(writer) = self.unsealed.lock().pop() else { break };
            let pack = writer.pack.number;
            if self.has(pack) {
                self.end_with_directory(writer).await;
                is_any |= self.is_sealed(pack);
            }
        }
        is_any
    }
}
