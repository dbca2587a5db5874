//! Descriptors that come with a request: the pipe that a stream of `hydrafs send` goes into or comes out of.
//!
//! One travels with the first bytes of the request's line (unix(7), SCM_RIGHTS). Who asks for what takes none has what he sent closed.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Sends as many of the bytes as there is room for, and a descriptor with the first of them. Gives their count.
pub(super) fn send_with(stream: &UnixStream, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for one");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Reads from a socket, and keeps the descriptor that comes.
pub(super) struct Hearing<'a> {
    stream: &'a UnixStream,
    pub(super) descriptor: Option<OwnedFd>,
}

impl<'a> Hearing<'a> {
    pub(super) fn new(stream: &'a UnixStream) -> Hearing<'a> {
        Hearing { stream, descriptor: None }
    }
}

impl Read for Hearing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(buffer)];
        let received = rustix::net::recvmsg(self.stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut sent) = message {
                self.descriptor = sent.next().or(self.descriptor.take());
            }
        }
        Ok(received.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::{Hearing, send_with};

    #[test]
    fn a_descriptor_comes_with_the_bytes() {
        let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
        let (mut end, start) = std::io::pipe().expect("a pipe");
        let mut hearing = Hearing::new(&theirs);
        let mut bytes = [0; 20];
        ours.write_all(b"without").expect("room");
        assert_eq!((hearing.read(&mut bytes).expect("there"), hearing.descriptor.is_some()), (7, false));
        assert_eq!(send_with(&ours, b"with", start.as_fd()).expect("room"), 4);
        drop(start);
        assert_eq!((hearing.read(&mut bytes).expect("there"), &bytes[..4]), (4, &b"with"[..]));
        let mut sent = std::fs::File::from(hearing.descriptor.take().expect("it came"));
        sent.write_all(b"through").expect("room");
        drop(sent);
        let mut text = String::new();
        end.read_to_string(&mut text).expect("text");
        assert_eq!(text, "through");
        drop(ours);
        assert_eq!(hearing.read(&mut bytes).expect("the end"), 0);
    }
}
