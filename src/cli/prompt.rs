//! Asks for a password on a terminal, without showing it.
//!
//! The terminal is as it was afterwards, however this ends: interrupts are read as characters
//! while it asks, so that none can end the program in between.

use std::io::{self, BufRead, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use rustix::termios::{tcgetattr, tcsetattr};

use crate::ops::{Error, ExitCode};

/// Longest password that is read.
const LENGTH_MAX: usize = 4096;
const INTERRUPT: u8 = 3;
const END: u8 = 4;
const BACKSPACE: u8 = 8;
const KILL_LINE: u8 = 21;
const DELETE: u8 = 127;

struct Restore(Termios);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Asks for a password; `None` where there is no terminal to ask on.
///
/// # Errors
///
/// [`ExitCode::Interrupted`] on Ctrl-C, [`ExitCode::Failed`] when the terminal cannot be used.
pub(super) fn password(user: &str) -> Result<Option<String>, Error> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(None);
    }
    let failed = |error: io::Error| {
        Error::new(ExitCode::Failed, format!("cannot ask for a password: {error}"))
    };
    let before = tcgetattr(io::stdin()).map_err(|error| failed(error.into()))?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
    silent.special_codes[SpecialCodeIndex::VMIN] = 1;
    silent.special_codes[SpecialCodeIndex::VTIME] = 0;
    let restore = Restore(before);
    tcsetattr(io::stdin(), OptionalActions::Flush, &silent)
        .map_err(|error| failed(error.into()))?;
    let mut err = io::stderr();
    let _ = write!(err, "Password of {user}: ").and_then(|()| err.flush());
    let answer = read(io::stdin().lock());
    drop(restore);
    let _ = writeln!(err);
    match answer.map_err(failed)? {
        Some(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| Error::usage("the password is no text in UTF-8")),
        None => Err(Error::interrupted()),
    }
}

/// Reads a line; `None` when it is interrupted.
fn read(input: impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    #[allow(clippy::unbuffered_bytes, reason = "a terminal is read byte by byte")]
    for byte in input.bytes() {
        match byte? {
            INTERRUPT => return Ok(None),
            END | b'\n' | b'\r' => break,
            KILL_LINE => line.clear(),
            BACKSPACE | DELETE => {
                // A character may be several bytes.
                while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            byte if line.len() < LENGTH_MAX => line.push(byte),
            _ => {}
        }
    }
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_edited_as_on_a_terminal() {
        let line = |typed: &str| {
            let read = read(typed.as_bytes()).unwrap();
            read.map(|bytes| String::from_utf8(bytes).unwrap())
        };
        assert_eq!(line("secret\nrest").as_deref(), Some("secret"));
        assert_eq!(line("sx\u{7f}ecret\r").as_deref(), Some("secret"));
        assert_eq!(line("\u{fc}\u{8}ok").as_deref(), Some("ok"));
        assert_eq!(line("wrong\u{15}right\u{4}").as_deref(), Some("right"));
        assert_eq!(line("half\u{3}"), None);
    }
}
