//! Simple tokens: 16 random letters, a dot, and the index of the entry that made them; or, where an
//! embedder wants that, tokens that are signed.
//!
//! Simple ones live in memory only, each for a while after its last use, and end when the user is
//! deleted or gets another password, and when auth is turned off. There are at most
//! [`TOKENS_MAX`]: for one
//! more the one goes that would end first.
//!
//! Source: etcd `auth/simple_token.go`, `auth.authStore` (`invalidateUser`, `disable`), 3.6.16,
//! 3.7.3.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::User;
use crate::etcd::request::Body;
use crate::store::clock::Clock;
use crate::store::error::Error;

/// Most tokens at a time.
pub const TOKENS_MAX: usize = 100_000;
/// How long a token lives after its last use, where nothing is set.
const DEFAULT_TTL: Duration = Duration::from_secs(300);
/// Letters of a token.
const PREFIX_LEN: usize = 16;
const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Tokens that say themselves whose they are, in the place of simple ones; nothing is kept of them.
pub trait SignedTokens: fmt::Debug + Send + Sync {
    /// Makes a token of a user who has logged in, at a wall time in milliseconds since 1970.
    ///
    /// # Errors
    /// [`Error::VerifyOnly`] where others make them; or it cannot be signed.
    fn sign(&self, user: &User, unix_ms: u64) -> Result<String, Error>;

    /// Finds whose a token is, if it is valid at a wall time in milliseconds since 1970.
    fn verify(&self, token: &str, unix_ms: u64) -> Option<User>;
}

/// The tokens that are valid.
pub struct Tokens {
    clock: Arc<dyn Clock>,
    ttl: Duration,
    max: usize,
    book: Mutex<Book>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.lock().by_token.len();
        f.debug_struct("Tokens").field("count", &count).field("ttl", &self.ttl).finish()
    }
}

#[derive(Default)]
struct Book {
    by_token: HashMap<Arc<str>, Holder>,
    by_end: BTreeSet<(Duration, Arc<str>)>,
}

struct Holder {
    user: String,
    /// Until then, included, it is valid.
    end: Duration,
}

impl Book {
    fn remove(&mut self, token: &str) {
        if let Some((token, holder)) = self.by_token.remove_entry(token) {
            self.by_end.remove(&(holder.end, token));
        }
    }

    fn remove_ended(&mut self, now: Duration) {
        while self.by_end.first().is_some_and(|(end, _)| *end < now) {
            self.remove_first();
        }
    }

    fn remove_first(&mut self) {
        if let Some((_, token)) = self.by_end.pop_first() {
            self.by_token.remove(&token);
        }
    }
}

impl Tokens {
    /// Makes none yet; each lives so long after its last use, or etcd's five minutes where that is
    /// zero.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, ttl: Duration) -> Self {
        Self::bounded(clock, ttl, TOKENS_MAX)
    }

    pub(super) fn bounded(clock: Arc<dyn Clock>, ttl: Duration, max: usize) -> Self {
        let ttl = if ttl.is_zero() { DEFAULT_TTL } else { ttl };
        Self { clock, ttl, max, book: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the random letters that go into the log, before anybody waits for them.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn new_prefix() -> Result<String, Error> {
        let mut random = File::open("/dev/urandom").map_err(no_random)?;
        let mut prefix = String::new();
        while prefix.len() < PREFIX_LEN {
            let mut bytes = [0_u8; 32];
            random.read_exact(&mut bytes).map_err(no_random)?;
            // Above the last whole round some letters would come up more often.
            let fair = bytes.iter().filter(|byte| **byte < 208);
            let letters = fair.filter_map(|byte| LETTERS.get(usize::from(byte % 52)));
            let missing = PREFIX_LEN.saturating_sub(prefix.len());
            prefix.extend(letters.take(missing).map(|letter| char::from(*letter)));
        }
        Ok(prefix)
    }

    /// Makes the token of a user whose log-in was applied, from its letters and the entry's index.
    #[must_use]
    pub fn assign(&self, user: &str, prefix: &str, index: u64) -> String {
        let token: Arc<str> = format!("{prefix}.{index}").into();
        let now = self.clock.now();
        let end = now.saturating_add(self.ttl);
        let mut book = self.lock();
        book.remove_ended(now);
        book.remove(&token);
        while book.by_token.len() >= self.max.max(1) {
            book.remove_first();
        }
        book.by_end.insert((end, Arc::clone(&token)));
        book.by_token.insert(Arc::clone(&token), Holder { user: user.into(), end });
        token.as_ref().into()
    }

    /// Finds whose token it is, and lets it live on.
    #[must_use]
    pub fn find(&self, token: &str) -> Option<String> {
        let now = self.clock.now();
        let end = now.saturating_add(self.ttl);
        let mut book = self.lock();
        let book = &mut *book;
        book.remove_ended(now);
        let (token, _) = book.by_token.get_key_value(token)?;
        let token = Arc::clone(token);
        let holder = book.by_token.get_mut(&token)?;
        book.by_end.remove(&(holder.end, Arc::clone(&token)));
        holder.end = end;
        let user = holder.user.clone();
        book.by_end.insert((end, token));
        Some(user)
    }

    /// Forgets the tokens of a user, or all.
    pub fn forget(&self, user: Option<&str>) {
        let mut book = self.lock();
        match user {
            None => *book = Book::default(),
            Some(user) => {
                let book = &mut *book;
                book.by_token.retain(|token, holder| {
                    if holder.user != user {
                        return true;
                    }
                    book.by_end.remove(&(holder.end, Arc::clone(token)));
                    false
                });
            }
        }
    }

    /// Forgets the tokens that a request ended which was done.
    pub fn follow(&self, body: &Body<'_>) {
        let user = match body {
            Body::UserDelete(user) => user.name,
            Body::UserChangePassword(user) => user.name,
            Body::AuthDisable(_) => return self.forget(None),
            _ => return,
        };
        self.forget(Some(&String::from_utf8_lossy(user)));
    }
}

fn no_random(error: std::io::Error) -> Error {
    Error::Storage(format!("no random bytes from the operating system: {error}"))
}
