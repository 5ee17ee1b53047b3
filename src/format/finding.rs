//! What a check found: a stable code, how bad it is, where, and what is lost behind it.
//!
//! Damage in a file is a finding, not an error. Codes never change meaning; `docs/FINDINGS.md`
//! lists them and `tests/tidy.rs` holds the list and [`Code`] together.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::hex;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Info,
    /// Works, but something should be done or known before it is relied on.
    Warning,
    /// Damage: the bytes are not what their writer wrote, or cannot be read.
    Error,
}

macro_rules! codes {
    ($($name:ident = $id:literal $severity:ident $text:literal;)*) => {
        /// Stable identity of a kind of finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code { $(#[doc = $text] $name,)* }

        impl Code {
            /// Every code, in the order of `docs/FINDINGS.md`.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the identifier that is printed, such as `BOLT012`.
            #[must_use]
            pub fn id(self) -> &'static str { match self { $(Self::$name => $id,)* } }

            /// Returns the severity that goes with the code.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }

            /// Returns what the code means, in one line.
            #[must_use]
            pub fn meaning(self) -> &'static str { match self { $(Self::$name => $text,)* } }
        }
    };
}

codes! {
    FileEmpty = "FILE001" Error "the file is empty";
    FileWrapped = "FILE002" Error "the file is compressed, encrypted or encoded, not a database";
    FileTruncated = "FILE003" Error "the file is shorter than its own meta page says";
    FileForeign = "FILE004" Error "the file is not a bbolt database";
    FileMangled = "FILE005" Error "the file was changed by a text-mode transfer";
    FilePartial = "FILE006" Warning "the name says that a download did not finish";
    FileLiveCopy = "FILE007" Warning
        "the file was copied from a data directory, not saved as a snapshot";
    FileExtra = "FILE008" Warning "bytes follow the database that are no trailer";
    FileChanged = "FILE009" Error "the file changed while it was read";
    SealMissing = "SEAL001" Warning
        "there is no sha256 trailer, so nothing proves that the bytes are the saved ones";
    SealBroken = "SEAL002" Error "the sha256 trailer does not match the bytes before it";
    MetaNone = "BOLT001" Error "neither meta page is valid";
    MetaOne = "BOLT002" Warning "one of the two meta pages is damaged; the other one serves";
    MetaDiffer = "BOLT003" Info
        "the meta pages name different trees, as in a file that a server had open";
    PageBeyondMark = "BOLT004" Error "a page id is at or above the high-water mark";
    PageBeyondFile = "BOLT005" Error "a page runs past the end of the file or the high-water mark";
    PageSelfId = "BOLT006" Error "a page names another id than the one it was reached by";
    PageType = "BOLT007" Error "a page is not of the type that its place in the tree wants";
    ElementBounds = "BOLT008" Error "an element's key or value lies outside its page";
    KeyOrder = "BOLT009" Error "keys in a page do not ascend";
    KeyBelowParent = "BOLT010" Error "a key is smaller than the branch key that leads to its page";
    KeyAboveNext = "BOLT011" Error "a key is not smaller than the next branch key";
    PageTwice = "BOLT012" Error "a page is referenced more than once";
    PageFreed = "BOLT013" Error "a page is in use and in the freelist";
    FreelistTwice = "BOLT014" Error "a page is in the freelist more than once";
    PageLeaked = "BOLT015" Error "a page is neither in use nor in the freelist";
    FreelistUnreadable = "BOLT016" Error
        "the freelist page cannot be read; the tree itself may be whole";
    FreelistBounds = "BOLT017" Error "the freelist names a page that cannot be free";
    TreeDepth = "BOLT018" Error "the tree is deeper than any writer makes it";
    BucketHeader = "BOLT019" Error "a bucket's header cannot be read";
    InlineBucket = "BOLT020" Error "an inline bucket cannot be read";
    KeyEmpty = "BOLT021" Error "a key is empty";
    KeyLong = "BOLT022" Error "a key is longer than 32768 bytes";
    BranchEmpty = "BOLT023" Error "a branch page has no elements";
    PageHuge = "BOLT024" Error "a page is larger than the limit for one read";
    ElementFlags = "BOLT025" Error "an element has unknown flags";
    PageRead = "BOLT026" Error "a page could not be read from the disk";
    BucketMissing = "ETCD001" Error "bucket `key` or `meta` is not there";
    BucketUnknown = "ETCD002" Warning "a bucket that no known etcd writes";
    MetaKeyUnknown = "ETCD003" Warning "a row in bucket meta or cluster that no known etcd writes";
    FieldUnknown = "ETCD004" Warning "a protobuf or JSON field that no known etcd writes";
    RevisionKey = "ETCD005" Error "a key of bucket `key` is not a revision";
    RecordBytes = "ETCD006" Error "a record of bucket `key` cannot be decoded";
    RecordRevision = "ETCD007" Error "a record disagrees with the revision that it is stored under";
    RecordChain = "ETCD008" Error
        "a key's versions do not follow each other, so revisions are missing";
    StorageNewer = "ETCD009" Warning "the storage version is newer than any known one";
    VersionBytes = "ETCD010" Error "a version row cannot be read";
    MemberRow = "ETCD011" Error "a member row cannot be read";
    LeaseRow = "ETCD012" Error "a lease row cannot be read";
    AlarmRow = "ETCD013" Error "an alarm row cannot be read";
    AuthRow = "ETCD014" Error "an auth row cannot be read";
    AlarmNoSpace = "ETCD015" Warning
        "a NOSPACE alarm is inside; a server refuses writes while it stands";
    AlarmCorrupt = "ETCD016" Error
        "a CORRUPT alarm is inside: the cluster found its members to differ";
    LeaseMissing = "ETCD017" Warning "keys are attached to a lease that is not there";
    CompactionPending = "ETCD018" Info
        "a compaction was scheduled and has not finished; a server ends it at start";
    MetaRow = "ETCD019" Error "a row of bucket meta or cluster cannot be read";
    BucketNested = "ETCD020" Warning "a bucket inside an etcd bucket, which no known etcd writes";
    DowngradePending = "ETCD021" Warning "a downgrade is in progress";
    AlarmUnknown = "ETCD022" Warning "an alarm type that no known etcd raises";
    BucketAbsent = "ETCD024" Warning "a bucket that etcd makes at start is not there";
    LearnerInside = "ETCD023" Info "a member is a learner; restore makes voters only";
    WalName = "WAL001" Info "a file in the WAL directory that is no segment";
    WalSequence = "WAL002" Error "segments are missing: their numbers do not follow each other";
    WalChecksum = "WAL003" Error "a record's checksum does not match";
    WalProtobuf = "WAL004" Error "a record or the message in it cannot be decoded";
    WalTorn = "WAL005" Warning "the last write was cut short; a server drops what is left of it";
    WalCut = "WAL006" Error "a segment that is not the last one ends inside a record";
    WalLength = "WAL007" Error "a record is whole, but its length field is not";
    WalAfterEnd = "WAL008" Warning "bytes follow the end of the log; a server clears them";
    WalKindUnknown = "WAL009" Warning "a record or an entry of a kind that no known etcd writes";
    WalFieldUnknown = "WAL010" Warning "a field of a record that no known etcd writes";
    WalGap = "WAL011" Error "entries are missing: an index does not follow the one before";
    WalMetadataConflict = "WAL012" Error "segments disagree about whose log it is";
    WalMetadataMissing = "WAL013" Error "no record says whose log it is";
    WalCommit = "WAL014" Error "the commit index lies outside of the log";
    WalStateMissing = "WAL015" Warning "no record says what was voted for and committed";
    WalReplaced = "WAL016" Error "an entry that was committed is written again";
    WalTerm = "WAL017" Error "terms or the commit index go back";
    WalTermAhead = "WAL018" Warning "the last entry is of a later term than was voted in";
    WalHead = "WAL019" Warning "a segment does not begin with a checksum record";
    WalSnapshotVoid = "WAL020" Info
        "a snapshot record is above the commit index and counts for nothing";
    WalLimit = "WAL021" Error "a log holds more of a kind than any etcd writes";
    WalTornInside = "WAL022" Error "whole records follow a write that was cut short";
    WalEntryUnknown = "WAL023" Warning "an entry holds what this version does not know";
    WalEntryBroken = "WAL024" Error "an entry that a server would apply cannot be";
    DirDatabaseMissing = "DIR001" Error "there is a log, but no database";
    DirLogMissing = "DIR002" Error "there is a database, but no log";
    DirSnapshotAhead = "DIR003" Error "the newest snapshot is ahead of the database";
    DirDatabaseAhead = "DIR004" Error "the database is ahead of the log";
    DirReplay = "DIR005" Info "the log holds entries that are not in the database yet";
    DirSnapMissing = "DIR006" Warning
        "the newest snapshot record has no snapshot file, which etcd up to 3.6 needs";
    DirSnapBroken = "DIR007" Warning "a snapshot file cannot be read; a server sets it aside";
    DirSnapOrphan = "DIR008" Info "a snapshot file without a record in the log that counts";
    DirLeftover = "DIR009" Info "a file that a server left behind";
    DirDefragLeftover = "DIR010" Warning "a file that a killed defrag left behind";
    DirStray = "DIR011" Warning "a file or folder that is not a member's";
    DirProxy = "DIR012" Error "folders `member` and `proxy` lie side by side";
    DirMode = "DIR013" Warning "others may read or write what only the server should";
    DirSelfUnknown = "DIR014" Error "the log is that of a member that the database does not know";
    DirSelfRemoved = "DIR015" Error "the member was removed from its cluster";
    DirMembersDiffer = "DIR016" Warning
        "database and log name different members, even after what is to be replayed";
    DirV2Members = "DIR017" Warning
        "the snapshot file does not name the member, which etcd up to 3.5 needs";
    DirV2Requests = "DIR018" Warning
        "the log holds requests of the v2 API after its last snapshot, which etcd 3.7 cannot read";
    DirVersionReplay = "DIR019" Info "the log holds another cluster version than the database";
    DirV2Data = "DIR020" Warning
        "there are keys or users of the v2 API, which no server from 3.6 has";
    DirSelfUnlisted = "DIR021" Warning
        "the member is not among the members of its own database, as some tools leave it";
}

impl Code {
    /// Tells whether the code stands for something that this version does not know.
    ///
    /// Verify names these and does not pass the file; restore refuses rather than drops them.
    #[must_use]
    pub fn is_unknown(self) -> bool {
        matches!(
            self,
            Self::BucketUnknown
                | Self::MetaKeyUnknown
                | Self::FieldUnknown
                | Self::StorageNewer
                | Self::BucketNested
                | Self::AlarmUnknown
                | Self::WalKindUnknown
                | Self::WalFieldUnknown
                | Self::WalEntryUnknown
        )
    }

    /// Tells whether the code is about which pages are free, not about what the tree holds.
    ///
    /// A reader does not need the freelist, and a restore derives it anew.
    #[must_use]
    pub fn is_freelist(self) -> bool {
        matches!(
            self,
            Self::FreelistUnreadable
                | Self::FreelistTwice
                | Self::FreelistBounds
                | Self::PageFreed
                | Self::PageLeaked
        )
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

/// Where a finding is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Path of the file from the folder that was checked, where that holds several.
    pub file: Option<String>,
    /// Page id, where the finding is about a page.
    pub page: Option<u64>,
    /// Byte offset in the file.
    pub offset: Option<u64>,
    /// Page ids from the root page to the page.
    pub path: Vec<u64>,
    /// Bucket names from the top level down; empty for the root bucket.
    pub bucket: Vec<Vec<u8>>,
    /// The key of the row in question.
    pub key: Option<Vec<u8>>,
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(file) = &self.file {
            map.serialize_entry("file", file)?;
        }
        if let Some(page) = self.page {
            map.serialize_entry("page", &page)?;
        }
        if let Some(offset) = self.offset {
            map.serialize_entry("offset", &offset)?;
        }
        if !self.path.is_empty() {
            map.serialize_entry("path", &self.path)?;
        }
        if !self.bucket.is_empty() {
            map.serialize_entry("bucket", &bucket_text(&self.bucket))?;
        }
        if let Some(key) = &self.key {
            map.serialize_entry("key", &bytes_text(key))?;
        }
        map.end()
    }
}

/// Keys that cannot be reached because of a damaged page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The bucket that the keys are in.
    pub bucket: Vec<Vec<u8>>,
    /// Smallest key that may be lost; `None` is the bucket's first.
    pub from: Option<Vec<u8>>,
    /// First key after the lost ones; `None` is past the bucket's last.
    pub to: Option<Vec<u8>>,
}

impl Serialize for KeyRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("bucket", &bucket_text(&self.bucket))?;
        map.serialize_entry("from", &self.from.as_deref().map(bytes_text))?;
        map.serialize_entry("to", &self.to.as_deref().map(bytes_text))?;
        map.end()
    }
}

/// Most names of a bucket path, and most bytes of a name or key, that a finding keeps.
const PLACE_NAMES_MAX: usize = 8;
const PLACE_BYTES_MAX: usize = 512;

/// Cuts a key to what a finding keeps, so that a thousand findings stay small.
#[must_use]
pub fn short_key(key: &[u8]) -> Vec<u8> {
    key.get(..PLACE_BYTES_MAX).unwrap_or(key).to_vec()
}

/// Cuts a bucket path to what a finding keeps.
#[must_use]
pub fn short_path(path: &[Vec<u8>]) -> Vec<Vec<u8>> {
    path.iter().take(PLACE_NAMES_MAX).map(|name| short_key(name)).collect()
}

/// One thing that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of thing.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub place: Place,
    /// What was seen, in a sentence without a full stop.
    pub detail: String,
    /// The keys that are lost behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<KeyRange>,
}

impl Finding {
    /// Makes a finding of the code's own severity.
    #[must_use]
    pub fn new(code: Code, place: Place, detail: impl Into<String>) -> Self {
        Self { code, severity: code.severity(), place, detail: detail.into(), lost: None }
    }

    /// Says which keys are lost behind it.
    #[must_use]
    pub fn losing(mut self, lost: KeyRange) -> Self {
        self.lost = Some(lost);
        self
    }
}

/// Collects findings in bounded memory: past the limit they are only counted.
#[derive(Clone, Debug)]
pub struct Findings {
    kept: Vec<Finding>,
    limit: usize,
    left_out: u64,
    /// Every code that was met, kept or not.
    codes: BTreeSet<Code>,
}

impl Default for Findings {
    fn default() -> Self {
        Self::with_limit(1000)
    }
}

impl Findings {
    /// Makes an empty collection that keeps at most `limit` findings.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self { kept: Vec::new(), limit, left_out: 0, codes: BTreeSet::new() }
    }

    /// Adds a finding, or counts it when the limit is reached.
    pub fn push(&mut self, finding: Finding) {
        self.codes.insert(finding.code);
        if !self.is_full() {
            self.kept.push(finding);
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }

    /// Adds all findings of another collection.
    pub fn append(&mut self, other: Self) {
        self.left_out = self.left_out.saturating_add(other.left_out);
        self.codes.extend(other.codes);
        for finding in other.kept {
            self.push(finding);
        }
    }

    /// Returns the findings that were kept, in the order they were made.
    #[must_use]
    pub fn kept(&self) -> &[Finding] {
        &self.kept
    }

    /// Returns how many were counted but not kept.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Tells whether further findings are only counted, so that their places need not be made.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kept.len() >= self.limit
    }

    /// Returns every code that was met, also of findings that were only counted.
    pub fn codes(&self) -> impl Iterator<Item = Code> {
        self.codes.iter().copied()
    }

    /// Returns the codes met that mean damage.
    pub fn errors(&self) -> impl Iterator<Item = Code> {
        self.codes().filter(|code| code.severity() == Severity::Error)
    }

    /// Tells whether any finding means damage.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors().next().is_some()
    }

    /// Tells whether anything unknown was met.
    #[must_use]
    pub fn has_unknown(&self) -> bool {
        self.codes().any(Code::is_unknown)
    }

    /// Tells whether a code was met.
    #[must_use]
    pub fn has(&self, code: Code) -> bool {
        self.codes.contains(&code)
    }
}

/// Writes a bucket path for people: names joined by `/`, odd bytes escaped.
#[must_use]
pub fn bucket_text(path: &[Vec<u8>]) -> String {
    path.iter().map(|name| bytes_text(name)).collect::<Vec<_>>().join("/")
}

/// Writes a key or name for people: as it is when printable ASCII, else `0x` and hex.
///
/// At most 256 bytes are shown, so that a hostile key cannot flood the screen.
#[must_use]
pub fn bytes_text(bytes: &[u8]) -> String {
    let shown = bytes.get(..256).unwrap_or(bytes);
    let more = if shown.len() < bytes.len() { "..." } else { "" };
    if shown.iter().all(|b| (0x20..0x7f).contains(b)) && !shown.starts_with(b"0x") {
        format!("{}{more}", String::from_utf8_lossy(shown))
    } else {
        format!("0x{}{more}", hex(shown))
    }
}
