//! Lists of paths that are read from a file, for the commands that go through what is listed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::control::batch::client::PathList;
use crate::control::batch::wire::PATH_BYTES_MAX;
use crate::failure::Failure;

/// A list that is being read.
pub(super) struct Lines {
    source: Box<dyn BufRead>,
    end: u8,
    place: PathBuf,
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new("cannot read the list", error).at(path)
}

impl Lines {
    /// The list in a file, or on standard input; `is_null`: a zero is behind each path instead of a line's end.
    #[expect(clippy::disallowed_methods, reason = "a list is a file of the caller's")]
    pub(super) fn open(path: &Path, is_null: bool) -> Result<Lines, Failure> {
        let source: Box<dyn BufRead> = match path.as_os_str() == "-" {
            true => Box::new(io::stdin().lock()),
            false => Box::new(BufReader::new(File::open(path).map_err(|error| unreadable(path, &error))?)),
        };
        Ok(Lines { source, end: if is_null { 0 } else { b'\n' }, place: path.to_owned() })
    }

    /// The next path, as it was written; empty ones are none.
    pub(super) fn next(&mut self) -> Result<Option<PathBuf>, Failure> {
        loop {
            let (mut line, most) = (Vec::new(), PATH_BYTES_MAX as u64 + 1);
            let read = self.source.by_ref().take(most).read_until(self.end, &mut line);
            read.map_err(|error| unreadable(&self.place, &error))?;
            let is_whole = line.pop_if(|last| *last == self.end).is_some();
            if !is_whole && line.len() as u64 == most {
                let why = format!("a path of more than {PATH_BYTES_MAX} bytes");
                return Err(unreadable(&self.place, &why).mend("what lies between two ends of lines is one path"));
            }
            match line.is_empty() {
                true if is_whole => {}
                true => return Ok(None),
                false => return Ok(Some(PathBuf::from(OsStr::from_bytes(&line)))),
            }
        }
    }

    /// Reads it to its end, and has as many paths as one batch takes gone through at a time, and what cannot be below a directory refused.
    /// `parents`: the directories that lead to them are wanted too. `read` says whether more is wanted.
    pub(super) fn each_part(
        mut self,
        parents: bool,
        read: &mut dyn FnMut(PathList) -> Result<bool, Failure>,
        refuse: &mut dyn FnMut(PathBuf, &'static str),
    ) -> Result<(), Failure> {
        let mut list = PathList::new(parents);
        while let Some(path) = self.next()? {
            match below(path.as_os_str().as_bytes()) {
                Ok(below) if list.push(&below) => {}
                Ok(below) => {
                    if !read(std::mem::replace(&mut list, PathList::new(parents)))? {
                        return Ok(());
                    }
                    list.push(&below);
                }
                Err(why) => refuse(path, why),
            }
        }
        if list.is_empty() { Ok(()) } else { read(list).map(drop) }
    }
}

/// A path as it is told of below its directory: without dots, and without slashes that mean nothing.
fn below(path: &[u8]) -> Result<Vec<u8>, &'static str> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    if path.first() == Some(&b'/') {
        return Err("a listed path begins in the directory of the list, and not with a slash");
    }
    if names.clone().any(|name| name == b"..") {
        return Err("a listed path does not leave its directory");
    }
    Ok(names.collect::<Vec<_>>().join(&b'/'))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Lines, PATH_BYTES_MAX, below};

    fn lines(bytes: &'static [u8], end: u8) -> Lines {
        Lines { source: Box::new(bytes), end, place: PathBuf::from("list") }
    }

    fn all(mut lines: Lines) -> Vec<PathBuf> {
        std::iter::from_fn(|| lines.next().expect("it can be read")).collect()
    }

    #[test]
    fn a_path_is_on_each_line_or_before_each_zero() {
        let expected = ["a/b", "c d"].map(PathBuf::from);
        assert_eq!(all(lines(b"a/b\n\nc d", b'\n')), expected);
        assert_eq!(all(lines(b"a/b\0\0c d\0", 0)), expected);
        assert_eq!(all(lines(b"a\nb\0c\0", 0)), ["a\nb", "c"].map(PathBuf::from));
        assert!(all(lines(b"", 0)).is_empty());
        let long: &'static [u8] = vec![b'x'; PATH_BYTES_MAX].leak();
        assert_eq!(all(lines(long, 0))[0].as_os_str().len(), PATH_BYTES_MAX);
        let longer: &'static [u8] = vec![b'x'; PATH_BYTES_MAX + 1].leak();
        assert!(lines(longer, 0).next().expect_err("too long").to_string().contains("bytes"));
    }

    #[test]
    fn what_is_listed_lies_below_the_directory() {
        let is = |path: &str| below(path.as_bytes()).map(|path| String::from_utf8(path).expect("text"));
        assert_eq!((is("./a//b/."), is("a/b/"), is(".")), (Ok("a/b".into()), Ok("a/b".into()), Ok(String::new())));
        assert!(is("/a").is_err() && is("a/../b").is_err() && is("..").is_err());
        assert_eq!(is("..a"), Ok("..a".into()));
    }

    #[test]
    fn a_long_list_goes_in_parts_and_what_is_refused_is_told() {
        let text: String = (0..200_000).map(|number| format!("directory/{number}\n")).chain(["/x\n".into()]).collect();
        let (mut parts, mut refused) = (0, Vec::new());
        let mut read = |list: crate::control::batch::client::PathList| {
            assert!(!list.is_empty());
            parts += 1;
            Ok(true)
        };
        let mut refuse = |path: PathBuf, _| refused.push(path);
        lines(text.leak().as_bytes(), b'\n').each_part(true, &mut read, &mut refuse).expect("it can be read");
        assert_eq!((parts, refused.as_slice()), (3, [Path::new("/x").to_owned()].as_slice()));
    }
}
