//! Dedup domains: nodes that share a key, and so call equal content the same.
//!
//! A node is made with a key of its own, or with that of another node, which gives it in a file. Whoever has the key can tell whether a
//! node stores a content that he knows, and can make chunks that its nodes believe: the file is a secret.
//!
//! Not here: where a node keeps its key (`identity`).

use base::hash::DomainKey;
use platform::disk::Disk;

use crate::failure::{StoreError, refused};
use crate::format::DomainFile;
use crate::identity;

/// A dedup domain, for who holds its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Domain(pub(crate) DomainKey);

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Domain({})", self.name())
    }
}

impl Domain {
    /// The domain of a node, as one of its disks says. The node may be in use.
    ///
    /// # Errors
    /// Why none of them can be read.
    pub async fn of(disks: &[Disk]) -> Result<Domain, StoreError> {
        let mut failure = refused("the node", "no disk was given.", "Name the directories of its disks.");
        for disk in disks {
            match identity::read(disk).await {
                Ok((identity, _)) => return Ok(Domain(identity.key)),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// As in the file at `path`.
    ///
    /// # Errors
    /// `Refused` for bytes that are none, or of a newer program.
    pub fn from_file(bytes: &[u8], path: &str) -> Result<Domain, StoreError> {
        DomainFile::decode(bytes).map(|file| Domain(file.key)).map_err(|unfit| {
            let why =
                format!("it is no whole file of a dedup domain: expected {}, found {}.", unfit.expected, unfit.found);
            refused(path, why, "Make one with `hydrafs domain export`.")
        })
    }

    /// The bytes of its file. A secret.
    #[must_use]
    pub fn to_file(&self) -> Vec<u8> {
        DomainFile { key: self.0.clone() }.encode()
    }

    /// What it is called, for people. No secret.
    #[must_use]
    pub fn name(&self) -> String {
        identity::hex(&self.0.identity()[..8])
    }
}

#[cfg(test)]
mod tests {
    use base::hash::DomainKey;

    use super::Domain;

    #[test]
    fn a_file_gives_the_domain_and_damage_is_refused() {
        let domain = Domain(DomainKey([7; 32]));
        let bytes = domain.to_file();
        assert_eq!(Domain::from_file(&bytes, "f").unwrap(), domain);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let message = Domain::from_file(&damaged, "f").unwrap_err().to_string();
            assert!(message.starts_with("f: it is no whole file of a dedup domain"), "{message}");
            assert!(Domain::from_file(&bytes[..at], "f").is_err());
        }
        assert!(!format!("{domain:?}").contains(&"07".repeat(8)), "a key never prints itself");
    }
}
