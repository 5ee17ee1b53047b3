//! Two texts compared, as a unified diff.

use similar::TextDiff;

/// Lines that are shown around each change.
const CONTEXT: usize = 3;

/// Compares two texts line by line: a unified diff as `diff -u` prints it, names and all, or
/// nothing when they are equal.
///
/// A last line without an end is said to have none. Lines around a change are shown as they are:
/// whoever prints a diff of a file shows what stands in it.
#[must_use]
pub fn unified(old: &str, new: &str, old_name: &str, new_name: &str) -> String {
    let diff = TextDiff::from_lines(old, new);
    diff.unified_diff().context_radius(CONTEXT).header(old_name, new_name).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_changes_with_lines_around_them() {
        let old: String = (1..20).map(|n| format!("line {n}\n")).collect();
        let new = old.replace("line 10\n", "line X\n");
        let expected = "--- a\n+++ b\n@@ -7,7 +7,7 @@\n line 7\n line 8\n line 9\n-line 10\n\
                        +line X\n line 11\n line 12\n line 13\n";
        assert_eq!(unified(&old, &new, "a", "b"), expected);
    }

    #[test]
    fn equal_texts_have_no_diff_and_a_missing_line_end_is_said() {
        assert_eq!(unified("a\n", "a\n", "a", "b"), "");
        let diff = unified("a\nb", "a\nc", "a", "b");
        assert_eq!(diff.matches("\\ No newline at end of file").count(), 2, "{diff}");
    }
}
