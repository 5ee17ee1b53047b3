//! A change to one place of a text, of any style, changes that place alone.

use etcdkit::kube::yaml::{Change, Why};
use proptest::prelude::*;
use proptest::sample::Index;
use yaml_serde::Value;

use crate::yaml_model::{change, changes, places, read};
use crate::yaml_texts::texts;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_change_changes_its_own_place_alone(
        (text, ended) in texts(),
        place in any::<Index>(),
        which in any::<Index>(),
    ) {
        let Some(documents) = read(&text) else {
            return Err(TestCaseError::fail(format!("made no YAML: {text:?}")));
        };
        let ways = places(&documents[0]);
        let (way, all) = (place.get(&ways), changes());
        let asked = which.get(&all);
        match change(&text, way, asked) {
            Ok(new) => {
                let comments = |text: &str| text.matches("# a comment").count();
                prop_assert_eq!(comments(&new), comments(&text), "{} {}", text, new);
                if matches!(asked, Change::Set(_)) {
                    prop_assert_eq!(change(&new, way, asked).expect("the same again"), new);
                }
            }
            // What the place is not for; and a last line that would get an end.
            Err(refusal) => prop_assert!(
                matches!(refusal.why, Why::Shape | Why::Missing)
                    || (refusal.why == Why::Unproven && !ended && text.contains('|')),
                "{refusal}\n{text:?}\n{way:?} {asked:?}"
            ),
        }
    }
}

#[test]
fn both_readers_see_the_same_documents() {
    let text = "a: [x, {b: 1}]\n---\n- c\n";
    let seen = read(text).unwrap();
    assert_eq!(seen.len(), 2);
    assert_eq!(places(&seen[0]).len(), 5);
    assert!(matches!(seen[1], Value::Sequence(_)));
}
