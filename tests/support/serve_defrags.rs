//! A defragmentation while others have the database open.

use std::fs::File;

use crate::serve_child::{Served, run};

/// Who copies it goes on; who waits for its lock does not go on with it.
#[test]
fn a_database_that_another_process_has_open_is_not_cut_and_no_database_any_more() {
    let served = Served::start(&[]);
    run(async {
        let mut client = served.client().await;
        for number in 0..100 {
            client.put(format!("k{number}"), vec![7; 10_000], None).await.unwrap();
        }
        // So that all of it is in the file.
        client.defragment().await.unwrap();
    });
    let path = served.dir.join("member/snap/db");
    let before = File::open(&path).unwrap();
    let len = before.metadata().unwrap().len();
    run(async { served.client().await.defragment().await.unwrap() });
    assert_eq!(before.metadata().unwrap().len(), len);
    let source = etcdkit::bolt::Source::from_file(before).unwrap();
    assert!(etcdkit::bolt::File::from_source(source).is_err());
    served.serves();
}
