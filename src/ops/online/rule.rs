//! When a member is to be defragmented, as an expression over its figures.
//!
//! **Shape**: comparisons `< <= > >= == !=` of sums and products `+ - * / %` of numbers and names,
//! joined by `&&`, `||` and `!`, with parentheses. A number may have a unit behind it, `KiB MiB
//! GiB TiB` or `kB MB GB TB`. Names: `dbSize`, `dbSizeInUse`, `dbSizeFree` and `dbQuota` in bytes,
//! `dbQuotaUsage` the part of the quota that is used, from 0 to 1. They, and their meaning, are
//! those of etcd-defrag (`--defrag-rule`). All numbers are floating point. Without a quota
//! `dbQuota` is infinite.
//!
//! A rule is read into a program for a stack, so that neither asking nor dropping one recurses;
//! reading does, to [`DEPTH_MAX`].
//!
//! **Errors**: what is wrong, and at which byte.

use crate::ops::cluster::MemberView;

/// Bytes that a rule may have.
pub const BYTES_MAX: usize = 1024;
/// Parentheses and signs that may stand in each other.
pub const DEPTH_MAX: usize = 64;

/// A rule that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    text: String,
    program: Vec<Op>,
}

/// What a rule is asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Bytes of the file.
    pub size: f64,
    /// Bytes of it that are in use.
    pub in_use: f64,
    /// Bytes that it may have; infinite for no limit.
    pub quota: f64,
}

impl Figures {
    /// Takes what a member says of itself.
    #[must_use]
    pub fn of(member: &MemberView) -> Self {
        let quota = member.quota.map_or(f64::INFINITY, real);
        let [size, in_use] =
            [member.db_size, member.db_size_in_use].map(|bytes| real(bytes.unwrap_or(0)));
        Self { size, in_use, quota }
    }

    /// Returns what they are expected to be after a defragmentation.
    #[must_use]
    pub fn packed(self) -> Self {
        Self { size: self.in_use.min(self.size), ..self }
    }
}

/// Bytes beyond 2^53 are rounded, which no rule sees.
#[allow(clippy::cast_precision_loss, reason = "as said")]
fn real(bytes: i64) -> f64 {
    bytes as f64
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Number(f64),
    Name(Name),
    Negate,
    Not,
    Binary(Binary),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Name {
    Size,
    InUse,
    Free,
    Quota,
    Usage,
    True,
    False,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Binary {
    Or,
    And,
    Less,
    LessEqual,
    More,
    MoreEqual,
    Equal,
    Unequal,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// What an expression comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Truth,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Truth => "true or false",
        }
    }
}

const NAMES: [(&str, Name, Kind); 7] = [
    ("dbSize", Name::Size, Kind::Number),
    ("dbSizeInUse", Name::InUse, Kind::Number),
    ("dbSizeFree", Name::Free, Kind::Number),
    ("dbQuota", Name::Quota, Kind::Number),
    ("dbQuotaUsage", Name::Usage, Kind::Number),
    ("true", Name::True, Kind::Truth),
    ("false", Name::False, Kind::Truth),
];

const UNITS: [(&str, f64); 9] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
];

/// Operators by how tightly they bind, the loosest first; of each the longer ones first.
const LEVELS: [&[(&str, Binary)]; 5] = [
    &[("||", Binary::Or)],
    &[("&&", Binary::And)],
    &[
        ("<=", Binary::LessEqual),
        (">=", Binary::MoreEqual),
        ("==", Binary::Equal),
        ("!=", Binary::Unequal),
        ("<", Binary::Less),
        (">", Binary::More),
    ],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
    &[("*", Binary::Multiply), ("/", Binary::Divide), ("%", Binary::Remainder)],
];
/// Where comparisons stand in that; they do not chain.
const COMPARISONS: usize = 2;

impl Rule {
    /// Reads a rule.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and at which byte from 0.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("the rule has {} bytes, more than {BYTES_MAX}", text.len()));
        }
        let mut reader = Reader { text, at: 0, depth: 0, program: Vec::new() };
        let kind = reader.level(0)?;
        reader.blanks();
        if reader.at < text.len() {
            return Err(reader.wrong("an operator is missing, or a parenthesis is too many"));
        }
        if kind == Kind::Number {
            return Err("the rule comes to a number, not to true or false".to_owned());
        }
        Ok(Self { text: text.trim().to_owned(), program: reader.program })
    }

    /// Tells whether it holds. What divides by zero is infinite, or not a number, of which no
    /// comparison but `!=` holds.
    #[must_use]
    pub fn holds(&self, of: &Figures) -> bool {
        let mut stack: Vec<f64> = Vec::new();
        let truth = |truth: bool| f64::from(u8::from(truth));
        for op in &self.program {
            let value = match *op {
                Op::Number(number) => number,
                Op::Name(name) => match name {
                    Name::Size => of.size,
                    Name::InUse => of.in_use,
                    Name::Free => of.size - of.in_use,
                    Name::Quota => of.quota,
                    Name::Usage => of.size / of.quota,
                    Name::True => 1.0,
                    Name::False => 0.0,
                },
                Op::Negate => -stack.pop().unwrap_or_default(),
                Op::Not => truth(stack.pop() == Some(0.0)),
                Op::Binary(binary) => {
                    let right = stack.pop().unwrap_or_default();
                    let left = stack.pop().unwrap_or_default();
                    match binary {
                        Binary::Or => truth(left != 0.0 || right != 0.0),
                        Binary::And => truth(left != 0.0 && right != 0.0),
                        Binary::Less => truth(left < right),
                        Binary::LessEqual => truth(left <= right),
                        Binary::More => truth(left > right),
                        Binary::MoreEqual => truth(left >= right),
                        #[allow(clippy::float_cmp, reason = "it is what the rule says")]
                        Binary::Equal => truth(left == right),
                        #[allow(clippy::float_cmp, reason = "it is what the rule says")]
                        Binary::Unequal => truth(left != right),
                        Binary::Add => left + right,
                        Binary::Subtract => left - right,
                        Binary::Multiply => left * right,
                        Binary::Divide => left / right,
                        Binary::Remainder => left % right,
                    }
                }
            };
            stack.push(value);
        }
        stack.pop().is_some_and(|value| value != 0.0)
    }

    /// Returns the rule as it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Reads bytes with or without a unit.
pub(super) fn bytes(text: &str) -> Result<i64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim() {
        "" => "B",
        unit => unit,
    };
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let value = number.parse::<f64>().ok().zip(factor).map(|(number, factor)| number * factor);
    // Beyond 2^53 bytes nothing is counted exactly.
    let value = value.filter(|value| *value < 9e15).ok_or_else(|| {
        let names: Vec<&str> = UNITS.iter().map(|(name, _)| *name).collect();
        format!("{text} is no number of bytes; units are {}", names.join(", "))
    })?;
    #[allow(clippy::cast_possible_truncation, reason = "it is below 2^53 and not negative")]
    let whole = value as i64;
    Ok(whole)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    program: Vec<Op>,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn wrong(&self, what: &str) -> String {
        let found: String = self.rest().chars().take(12).filter(|c| !c.is_control()).collect();
        match found.is_empty() {
            true => format!("{what}, at the end of the rule"),
            false => format!("{what}, at byte {}: {found}", self.at),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        self.blanks();
        let is_there = self.rest().starts_with(word);
        if is_there {
            self.at += word.len();
        }
        is_there
    }

    /// Reads operands with operators of one level between.
    fn level(&mut self, level: usize) -> Result<Kind, String> {
        let Some(operators) = LEVELS.get(level) else { return self.signed() };
        let mut left = self.level(level + 1)?;
        let mut compared = false;
        loop {
            self.blanks();
            let at = self.at;
            let Some((_, binary)) = operators.iter().find(|(word, _)| self.take(word)) else {
                return Ok(left);
            };
            if compared {
                self.at = at;
                return Err(self.wrong("comparisons do not chain; join them with &&"));
            }
            let right = self.level(level + 1)?;
            left = match (level, left, right) {
                (0 | 1, Kind::Truth, Kind::Truth) => Kind::Truth,
                (COMPARISONS, a, b)
                    if a == b
                        && (a == Kind::Number
                            || matches!(binary, Binary::Equal | Binary::Unequal)) =>
                {
                    compared = true;
                    Kind::Truth
                }
                (3.., Kind::Number, Kind::Number) => Kind::Number,
                (_, a, b) => {
                    self.at = at;
                    let what = format!("{} and {} do not go together here", a.word(), b.word());
                    return Err(self.wrong(&what));
                }
            };
            self.program.push(Op::Binary(*binary));
        }
    }

    fn deeper(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong(&format!("more than {DEPTH_MAX} parentheses and signs in one")));
        }
        Ok(())
    }

    /// Reads signs, and what they stand before.
    fn signed(&mut self) -> Result<Kind, String> {
        self.blanks();
        let at = self.at;
        for (sign, op, wanted) in [("!", Op::Not, Kind::Truth), ("-", Op::Negate, Kind::Number)] {
            if self.take(sign) {
                self.deeper()?;
                let kind = self.signed()?;
                self.depth -= 1;
                if kind != wanted {
                    self.at = at;
                    let what = format!("{sign} stands before {}", kind.word());
                    return Err(self.wrong(&what));
                }
                self.program.push(op);
                return Ok(kind);
            }
        }
        self.operand()
    }

    fn operand(&mut self) -> Result<Kind, String> {
        if self.take("(") {
            self.deeper()?;
            let kind = self.level(0)?;
            self.depth -= 1;
            if !self.take(")") {
                return Err(self.wrong("a closing parenthesis is missing"));
            }
            return Ok(kind);
        }
        let rest = self.rest();
        let len_of =
            |text: &str, part: fn(char) -> bool| text.find(|c| !part(c)).unwrap_or(text.len());
        let number = rest.get(..len_of(rest, |c| c.is_ascii_digit() || c == '.')).unwrap_or("");
        let is_word: fn(char) -> bool = |c| c.is_ascii_alphanumeric() || c == '_';
        if number.is_empty() {
            let word = rest.get(..len_of(rest, is_word)).unwrap_or("");
            let Some((_, name, kind)) = NAMES.iter().find(|(name, ..)| *name == word) else {
                let names: Vec<&str> = NAMES.iter().map(|(name, ..)| *name).collect();
                let what = match word {
                    "" => "a number or a name is missing".to_owned(),
                    _ => format!("no such name; there are {}", names.join(", ")),
                };
                return Err(self.wrong(&what));
            };
            self.at += word.len();
            self.program.push(Op::Name(*name));
            return Ok(*kind);
        }
        let Ok(value) = number.parse::<f64>() else { return Err(self.wrong("no number")) };
        let behind = rest.get(number.len()..).unwrap_or("");
        let unit = behind.get(..len_of(behind, is_word)).unwrap_or("");
        let factor = match unit {
            "" => 1.0,
            unit => match UNITS.iter().find(|(name, _)| *name == unit) {
                Some((_, factor)) => *factor,
                None => {
                    let names: Vec<&str> = UNITS.iter().map(|(name, _)| *name).collect();
                    return Err(
                        self.wrong(&format!("no such unit; there are {}", names.join(", ")))
                    );
                }
            },
        };
        self.at += number.len() + unit.len();
        self.program.push(Op::Number(value * factor));
        Ok(Kind::Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OF: Figures =
        Figures { size: 2_147_483_648.0, in_use: 1_073_741_824.0, quota: 4_294_967_296.0 };

    fn holds(text: &str) -> bool {
        Rule::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).holds(&OF)
    }

    #[test]
    fn the_rules_of_etcd_defrag_mean_what_they_mean_there() {
        for (rule, expected) in [
            ("dbSize > dbQuota*80/100 || dbSize - dbSizeInUse > 200*1024*1024", true),
            ("dbQuotaUsage > 0.8 || dbSizeFree > 200*1024*1024", true),
            ("dbQuotaUsage > 0.8 && dbSizeFree > 200*1024*1024", false),
            ("dbQuotaUsage == 0.5", true),
            ("dbSizeFree >= 1GiB && dbSizeFree > 1GB", true),
            ("dbSizeFree > 1 * 1GiB", false),
            ("!(dbSize < 2GiB) && !false", true),
            ("true == (1 < 2)", true),
            ("1 + 2 * 3 == 7 && (1 + 2) * 3 == 9 && 7 - 2 - 1 == 4 && 16 / 4 / 2 == 2", true),
            ("5 % 3 == 2 && -2 + 3 == 1 && --2 == 2 && .5 == 0.5", true),
            ("true || false && false", true),
            ("dbSize / 0 > dbQuota", true),
            ("0 / 0 == 0 / 0", false),
            ("0/0 != 1", true),
        ] {
            assert_eq!(holds(rule), expected, "{rule}");
        }
        let unlimited = Figures { quota: f64::INFINITY, ..OF };
        let usage = Rule::parse("dbQuotaUsage > 0 || dbSize > dbQuota").unwrap();
        assert!(!usage.holds(&unlimited));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (rule, expected) in [
            ("", "a number or a name is missing, at the end"),
            ("dbSize", "comes to a number"),
            ("1 + 2 <", "a number or a name is missing"),
            ("1 < 2 < 3", "do not chain; join them with &&, at byte 6"),
            ("dbSize > 5 GiB", "an operator is missing"),
            ("dbSize > 5XB", "no such unit"),
            ("dbsize > 5", "no such name; there are dbSize"),
            ("dbSize && true", "a number and true or false do not go together here, at byte 7"),
            ("!5 > 3", "! stands before a number, at byte 0"),
            ("-true", "- stands before true or false"),
            ("true < false", "do not go together"),
            ("(1 < 2", "a closing parenthesis is missing, at the end"),
            ("1 < 2)", "a parenthesis is too many, at byte 5"),
            ("1.2.3 > 1", "no number, at byte 0"),
            ("1 = 1", "an operator is missing"),
            ("dbSize > \u{e9}", "a number or a name is missing"),
        ] {
            let error = Rule::parse(rule).unwrap_err();
            assert!(error.contains(expected), "{rule}: {error}");
        }
        let error = Rule::parse(&format!("{}true", "(".repeat(DEPTH_MAX + 1))).unwrap_err();
        assert!(error.contains("more than 64"), "{error}");
        let error = Rule::parse(&"!".repeat(900)).unwrap_err();
        assert!(error.contains("more than 64"), "{error}");
        assert!(Rule::parse(&" ".repeat(BYTES_MAX + 1)).unwrap_err().contains("bytes"));
        let wide = format!("0{} == 400", "+1".repeat(400));
        assert!(holds(&wide));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = Rule::parse(&text).map(|rule| rule.holds(&OF));
        }

        #[test]
        fn words_in_any_order_leave_one_value(words in prop::collection::vec(
            prop::sample::select(vec!["dbSize", "true", "1", "2MiB", "(", ")", "+", "-", "!", "<",
                "==", "&&", "||", "%", "dbQuotaUsage"]), 0..30)) {
            let text = words.join(" ");
            if let Ok(rule) = Rule::parse(&text) {
                let depth = rule.program.iter().fold(0_i32, |depth, op| match op {
                    Op::Number(_) | Op::Name(_) => depth + 1,
                    Op::Negate | Op::Not => { assert!(depth > 0, "{text}"); depth }
                    Op::Binary(_) => { assert!(depth > 1, "{text}"); depth - 1 }
                });
                prop_assert_eq!(depth, 1);
            }
        }

        #[test]
        fn comparisons_are_those_of_numbers(a in 0_u32.., b in 0_u32..) {
            let less = Rule::parse(&format!("{a} < {b}")).unwrap();
            prop_assert_eq!(less.holds(&OF), a < b);
            let sum = Rule::parse(&format!("{a} + {b} == {}", u64::from(a) + u64::from(b)));
            prop_assert!(sum.unwrap().holds(&OF));
        }
    }
}
