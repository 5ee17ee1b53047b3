//! Sizes as they are shown.

/// Writes a size as etcdctl and etcdutl do: powers of 1000, one digit after the point below ten
/// (go-humanize 1.0.1, `Bytes`).
pub(in crate::cli) fn size(bytes: u64) -> String {
    if bytes < 10 {
        return format!("{bytes} B");
    }
    let mut unit = 1_u64;
    let mut name = "B";
    for next in ["kB", "MB", "GB", "TB", "PB", "EB"] {
        if bytes / unit < 1000 {
            break;
        }
        (unit, name) = (unit.saturating_mul(1000), next);
    }
    // Tenths first, then whole ones half to even, as the library does.
    let tenths = (u128::from(bytes) * 100 / u128::from(unit) + 5) / 10;
    if tenths < 100 {
        return format!("{}.{} {name}", tenths / 10, tenths % 10);
    }
    let (whole, rest) = (tenths / 10, tenths % 10);
    let up = rest > 5 || (rest == 5 && whole % 2 == 1);
    format!("{} {name}", whole + u128::from(up))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_etcdctls() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (29_000, "29 kB"),
            (61_440, "61 kB"),
            (331_776, "332 kB"),
            (9_990_000, "10 MB"),
            (9_940_000, "9.9 MB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text, "{bytes}");
        }
    }
}
