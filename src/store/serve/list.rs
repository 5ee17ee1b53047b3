//! The answer of a range as bytes that are made when the client takes them.
//!
//! ```text
//! byte 0      0: not compressed
//! byte 1..5   length of the message, big-endian
//! then        header (field 1), each record (field 2), more (field 3), count (field 4)
//! ```
//!
//! A record stands in the database as it stands in the message, so that none is decoded. What a
//! list costs is the memory of its records, each of which is let go when it is sent, and a piece.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use ::http::HeaderMap;
use bytes::{BufMut, Bytes, BytesMut};
use http_body::Frame;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::{Code, Status};

use crate::format::u64_of;
use crate::store::answer;
use crate::store::kv::Kv;
use crate::store::wire::etcdserverpb as pb;

/// Bytes that are handed on at once, about.
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// Bytes before a message.
const PREFIX_BYTES: usize = 5;
/// Bytes of the longest message that gRPC's Go library sends, and takes.
const MESSAGE_BYTES_MAX: usize = 0x7FFF_FFFF;
/// Field `kvs` of `RangeResponse`.
const KVS: u32 = 2;

/// The answer of a range, on its way.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// What stands before the records.
    head: Bytes,
    kvs: vec::IntoIter<Kv>,
    /// What stands behind them.
    tail: Bytes,
    /// A record that is a piece of its own.
    whole: Option<Bytes>,
    /// Bytes that are left, about: not less.
    left: usize,
    has_ended: bool,
}

impl List {
    /// Makes the answer.
    ///
    /// # Errors
    /// The message is longer than a client of etcd takes.
    pub(super) fn new(
        header: Option<pb::ResponseHeader>,
        answer: answer::Range,
    ) -> Result<Self, Status> {
        let answer::Range { kvs, more, count } = answer;
        // The fields of a message stand in any order, and after each other: so may two halves.
        let head = pb::RangeResponse { header, ..Default::default() };
        let tail = pb::RangeResponse { more, count, ..Default::default() }.encode_to_vec();
        let records = kvs.iter().map(record_bytes).fold(0, usize::saturating_add);
        let bytes =
            [head.encoded_len(), tail.len()].into_iter().fold(records, usize::saturating_add);
        let length = u32::try_from(bytes).ok().filter(|_| bytes <= MESSAGE_BYTES_MAX);
        let length = length.ok_or_else(|| {
            let text = "trying to send message larger than max";
            Status::resource_exhausted(format!("grpc: {text} ({bytes} vs. {MESSAGE_BYTES_MAX})"))
        })?;
        let mut prefixed = Vec::with_capacity(PREFIX_BYTES.saturating_add(head.encoded_len()));
        prefixed.put_u8(0);
        prefixed.put_u32(length);
        prefixed.put(head.encode_to_vec().as_slice());
        Ok(Self {
            head: prefixed.into(),
            kvs: kvs.into_iter(),
            tail: tail.into(),
            whole: None,
            left: bytes.saturating_add(PREFIX_BYTES),
            has_ended: false,
        })
    }

    /// Returns the next bytes; none when all are sent.
    fn piece(&mut self) -> Bytes {
        if let Some(whole) = self.whole.take() {
            return whole;
        }
        let mut piece = BytesMut::with_capacity(self.left.min(PIECE_BYTES));
        piece.put(std::mem::take(&mut self.head));
        loop {
            let next = self.kvs.as_slice().first().map(record_bytes);
            let room = PIECE_BYTES.saturating_sub(piece.len());
            if next.is_some_and(|bytes| bytes > room) && !piece.is_empty() {
                break;
            }
            let Some(Kv(record)) = self.kvs.next() else {
                piece.put(std::mem::take(&mut self.tail));
                break;
            };
            encode_key(KVS, WireType::LengthDelimited, &mut piece);
            encode_varint(u64_of(record.len()), &mut piece);
            if next.is_some_and(|bytes| bytes > PIECE_BYTES) {
                self.whole = Some(record);
                break;
            }
            piece.put(record);
        }
        self.left = self.left.saturating_sub(piece.len());
        piece.freeze()
    }
}

/// Bytes of a record in the message.
fn record_bytes(kv: &Kv) -> usize {
    let bytes = kv.bytes().len();
    let prefix = key_len(KVS).saturating_add(encoded_len_varint(u64_of(bytes)));
    prefix.saturating_add(bytes)
}

impl http_body::Body for List {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let piece = self.piece();
        if !piece.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        self.has_ended = true;
        let mut trailers = HeaderMap::new();
        // Nothing is in it that no header can have.
        let _ = Status::new(Code::Ok, "").add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::etcd::record::KeyValue;
    use crate::store::serve::convert;

    fn header() -> Option<pb::ResponseHeader> {
        Some(pb::ResponseHeader { cluster_id: 7, member_id: 8, revision: 9, raft_term: 2 })
    }

    fn answer(sizes: &[usize], more: bool, count: i64) -> answer::Range {
        let kv = |(at, size): (usize, &usize)| {
            let (key, value) = (format!("key {at}"), vec![b'x'; *size]);
            let mod_revision = i64::try_from(at).unwrap() + 2;
            let key = key.as_bytes();
            let record = KeyValue { key, value: &value, mod_revision, ..Default::default() };
            Kv::encode(&record)
        };
        answer::Range { kvs: sizes.iter().enumerate().map(kv).collect(), more, count }
    }

    /// Lengths of the pieces, and all that is in them.
    fn pieces(mut list: List) -> (Vec<usize>, Vec<u8>) {
        let (mut lengths, mut bytes) = (Vec::new(), Vec::new());
        loop {
            let piece = list.piece();
            if piece.is_empty() {
                return (lengths, bytes);
            }
            lengths.push(piece.len());
            bytes.extend_from_slice(&piece);
        }
    }

    #[test]
    fn a_list_is_the_message_that_the_library_makes() {
        let long = [1, PIECE_BYTES, 1, 3 * PIECE_BYTES, 3 * PIECE_BYTES, PIECE_BYTES - 40, 9];
        let lists: [(&[usize], bool, i64); 6] = [
            (&[], false, 0),
            (&[], true, 5),
            (&[0], false, 1),
            (&long, true, 100),
            (&[1000; 500], false, 500),
            (&[3 * PIECE_BYTES], false, 0),
        ];
        for (sizes, more, count) in lists {
            let answer = answer(sizes, more, count);
            let expected = convert::range_response(header(), &answer).encode_to_vec();
            let (lengths, bytes) = pieces(List::new(header(), answer).unwrap());
            let (prefix, message) = bytes.split_at(PREFIX_BYTES);
            assert_eq!(prefix[0], 0);
            let length = u32::try_from(expected.len()).unwrap();
            assert_eq!(&prefix[1..], length.to_be_bytes(), "{sizes:?}");
            assert!(message == expected, "{sizes:?}");
            let longest = sizes.iter().copied().max().unwrap_or(0) + 40;
            assert!(lengths.iter().all(|it| *it <= longest.max(PIECE_BYTES)), "{lengths:?}");
        }
    }

    #[test]
    fn pieces_are_filled() {
        let (lengths, bytes) = pieces(List::new(None, answer(&[1000; 1000], false, 1)).unwrap());
        assert!(lengths.len() <= bytes.len() / (PIECE_BYTES - 1100) + 1, "{lengths:?}");
    }

    #[test]
    fn a_list_too_long_for_a_client_is_refused_as_etcd_refuses_it() {
        // One record many times: it takes its memory once.
        let kv = answer(&[1 << 20], false, 0).kvs.remove(0);
        let of = |count| answer::Range { kvs: vec![kv.clone(); count], ..Default::default() };
        assert!(List::new(None, of(2046)).is_ok());
        let status = List::new(None, of(2048)).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let text = "grpc: trying to send message larger than max (2147518464 vs. 2147483647)";
        assert_eq!(status.message(), text);
    }

    #[tokio::test]
    async fn a_list_ends_with_the_status() {
        let collected =
            List::new(None, answer(&[7; 3], false, 3)).unwrap().collect().await.unwrap();
        let trailers = collected.trailers().unwrap();
        assert_eq!(trailers.get("grpc-status").unwrap(), "0");
    }
}
