//! The erasure code: parity from data, and any fragment from k others. A systematic Reed-Solomon code over 16-bit words, by the crate
//! `reed-solomon-simd`.
//!
//! It works on units of 64 bytes by themselves, so that equal ranges of fragments, as long as they begin and end with a unit, are a code as
//! much as whole fragments are.
//!
//! Not here: files (`pack/fragments`, `fragmenting`).

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use crate::level::Erasure;

/// The parity of equal ranges of all fragments of data.
pub(crate) fn parity(erasure: Erasure, data: &[impl AsRef<[u8]>]) -> Vec<Vec<u8>> {
    let (k, m) = (usize::from(erasure.data()), usize::from(erasure.parity()));
    assert_eq!(data.len(), k, "parity is of all data");
    let coded = ReedSolomonEncoder::new(k, m, data[0].as_ref().len()).and_then(|mut encoder| {
        data.iter().try_for_each(|data| encoder.add_original_shard(data))?;
        Ok(encoder.encode()?.recovery_iter().map(<[u8]>::to_vec).collect())
    });
    coded.expect("equal ranges of whole units, as many as the encoder was made for")
}

/// The range of the fragment `wanted`, from those of k others with their indices; `None` where there are fewer.
pub(crate) fn restore(erasure: Erasure, found: &[(usize, Vec<u8>)], wanted: usize) -> Option<Vec<u8>> {
    let (k, m) = (usize::from(erasure.data()), usize::from(erasure.parity()));
    let (_, first) = found.first()?;
    if found.len() < k {
        return None;
    }
    let mut decoder = ReedSolomonDecoder::new(k, m, first.len()).expect("no more than Erasure allows");
    let added = found.iter().try_for_each(|(index, bytes)| match index.checked_sub(k) {
        None => decoder.add_original_shard(*index, bytes),
        Some(index) => decoder.add_recovery_shard(index, bytes),
    });
    added.expect("equal ranges of different fragments");
    let decoded = decoder.decode().expect("k of them");
    let data_of = |index: usize| match found.iter().find(|(found, _)| *found == index) {
        Some((_, bytes)) => bytes.clone(),
        None => decoded.restored_original(index).expect("all that was not given").to_vec(),
    };
    Some(match wanted.checked_sub(k) {
        None => data_of(wanted),
        Some(index) => parity(erasure, &(0..k).map(data_of).collect::<Vec<_>>()).swap_remove(index),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragments(erasure: Erasure, bytes: usize) -> Vec<Vec<u8>> {
        let byte = |index: usize, at: usize| (((index + 3) * (at + 7) * 2_654_435_761) >> 13) as u8;
        let data: Vec<Vec<u8>> =
            (0..usize::from(erasure.data())).map(|index| (0..bytes).map(|at| byte(index, at)).collect()).collect();
        let parity = parity(erasure, &data);
        [data, parity].concat()
    }

    #[test]
    fn any_k_give_back_each_of_the_others() {
        for (text, bytes) in [("2+1", 64), ("4+2", 192), ("5+3", 640), ("16+4", 64)] {
            let erasure: Erasure = text.parse().unwrap();
            let all = fragments(erasure, bytes);
            let k = usize::from(erasure.data());
            // Each run of k, around the end.
            for start in 0..all.len() {
                let chosen = (start..start + k).map(|index| index % all.len());
                let found: Vec<_> = chosen.map(|index| (index, all[index].clone())).collect();
                for (wanted, expected) in all.iter().enumerate() {
                    assert_eq!(restore(erasure, &found, wanted).as_ref(), Some(expected), "{text}: {wanted}");
                }
                assert_eq!(restore(erasure, &found[1..], 0), None);
            }
        }
    }

    /// What is on disks stays readable: who changes the code, or the crate, changes the format of fragments.
    #[test]
    fn the_code_is_that_of_version_1() {
        let all = fragments("4+2".parse().unwrap(), 128);
        let sums = all[4..].iter().map(|parity| base::hash::checksum(0, parity));
        assert_eq!(sums.collect::<Vec<_>>(), [5_550_207_655_914_801_486, 1_667_616_802_916_394_630]);
    }

    #[test]
    fn equal_ranges_are_a_code_by_themselves() {
        let erasure: Erasure = "4+2".parse().unwrap();
        let all = fragments(erasure, 64 * 9);
        for range in [0..64, 64 * 3..64 * 5, 64 * 8..64 * 9] {
            let found: Vec<_> = [5, 1, 4, 3].map(|index| (index, all[index][range.clone()].to_vec())).into();
            assert_eq!(restore(erasure, &found, 0).unwrap(), all[0][range.clone()]);
            assert_eq!(restore(erasure, &found, 2).unwrap(), all[2][range]);
        }
    }
}
