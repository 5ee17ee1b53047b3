use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn asked(program: Program, line: &str) -> Result<String, (u8, String)> {
    asked_with(program, line, &[])
}

fn asked_with(
    program: Program,
    line: &str,
    variables: &[(&str, &str)],
) -> Result<String, (u8, String)> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    match translate(program, &words(line), &variable) {
        Ok(Asked::Ours(ours)) => {
            let ours: Vec<String> =
                ours.iter().map(|word| word.to_str().unwrap().to_owned()).collect();
            Ok(ours.join(" "))
        }
        Ok(Asked::Text(text, _)) => Ok(text),
        Err(refusal) => Err((refusal.code, refusal.message)),
    }
}

#[test]
fn only_the_exact_name_counts() {
    for (called, program) in [
        ("etcdctl", Program::Etcdctl),
        ("/usr/local/bin/etcdutl", Program::Etcdutl),
        ("./etcdctl-3.6", Program::Etcdkit),
        ("etcdkit", Program::Etcdkit),
        ("", Program::Etcdkit),
    ] {
        assert_eq!(Program::of(Some(&called.into())), program, "{called}");
    }
    assert_eq!(Program::of(None), Program::Etcdkit);
}

#[cfg(feature = "live")]
#[test]
fn flags_stand_anywhere_in_every_spelling() {
    let ours = "etcdkit endpoint status --write-out=json --endpoints=a:1,b:2 --cluster=true";
    for line in [
        "--endpoints a:1,b:2 --cluster -w json endpoint status",
        "endpoint --endpoints=a:1,b:2 status --cluster=true -w=json",
        "endpoint status --endpoints=a:1 --endpoints b:2 --cluster=T -wjson",
        "endp stat --endpoints a:1,b:2 --cluster=1 --write-out json --debug --max-recv-bytes 3",
        "endpoint status --endpoints a:1,b:2 --cluster=false --cluster -w table -w json ignored",
    ] {
        assert_eq!(asked(Program::Etcdctl, line).as_deref(), Ok(ours), "{line}");
    }
    let env = [("ETCDCTL_WRITE_OUT", "json")];
    let line = "endpoint status --endpoints a:1,b:2 --cluster";
    assert_eq!(asked_with(Program::Etcdctl, line, &env).as_deref(), Ok(ours));
    // A switch takes no word of its own; what is left over is an argument.
    let line = "snapshot save --insecure-skip-tls-verify false --user= --password x s.db";
    let refused = asked(Program::Etcdctl, line).unwrap_err();
    assert_eq!(refused, (128, "snapshot save expects one argument <filename>".into()));
}

#[cfg(feature = "live")]
#[test]
fn etcdctls_refusals_have_its_codes() {
    for (line, code, message) in [
        ("nope", 1, "unknown command \"nope\" for \"etcdctl\""),
        ("endpoint nope", 1, "unknown command \"nope\" for \"etcdctl endpoint\""),
        ("--nope endpoint status", 1, "unknown flag: --nope"),
        ("endpoint status -x", 1, "unknown shorthand flag: 'x' in -x"),
        ("endpoint status --rev 3", 1, "unknown flag: --rev"),
        ("endpoint status --endpoints", 1, "flag needs an argument: --endpoints"),
        ("endpoint status -w", 1, "flag needs an argument: 'w' in -w"),
        (
            "endpoint status --cluster=maybe",
            1,
            "invalid argument \"maybe\" for \"--cluster\" flag: strconv.ParseBool: parsing \
             \"maybe\": invalid syntax",
        ),
        ("endpoint status -w foo", 4, "unsupported output format"),
        ("member list -w protobuf", 4, "protobuf not supported as output format"),
        ("alarm list -w table", 4, "table not supported as output format"),
        ("member list --consistency x", 4, "unknown consistency flag \"x\""),
        ("alarm list extra", 128, "alarm list command accepts no arguments"),
        ("snapshot save", 128, "snapshot save expects one argument <filename>"),
        ("endpoint status --cert=", 128, "empty string is passed to --cert option"),
    ] {
        assert_eq!(asked(Program::Etcdctl, line), Err((code, message.to_owned())), "{line}");
    }
    let (code, message) = asked(Program::Etcdctl, "member list -d example.org").unwrap_err();
    assert!(code == 4 && message.contains("--discovery-srv is not known"), "{message}");
}

#[test]
fn what_is_not_here_is_said_with_the_program_that_has_it() {
    for (program, line, has_no) in [
        (Program::Etcdctl, "put a b", "has no put:"),
        (Program::Etcdctl, "get --endpoints x a", "has no get:"),
        (Program::Etcdctl, "member add x --help", "has no member add:"),
        (Program::Etcdctl, "lease list", "has no lease:"),
        (Program::Etcdutl, "migrate", "has no migrate:"),
    ] {
        let (code, message) = asked(program, line).unwrap_err();
        assert_eq!(code, 1, "{line}");
        assert!(message.contains(has_no), "{line}: {message}");
        assert!(message.contains(&format!("run the real {}", program.name())), "{message}");
    }
}

#[test]
fn etcdutl_has_its_own_flags_and_default_directory() {
    let env = [("ETCDCTL_WRITE_OUT", "json")];
    let asked = |line| asked_with(Program::Etcdutl, line, &env);
    for (line, ours) in [
        ("snapshot status s.db", "snapshot status --write-out=simple -- s.db"),
        ("-w table snap status -- -s.db", "snapshot status --write-out=table -- -s.db"),
        ("hashkv s.db --rev=5 --timeout 3s", "hashkv --write-out=simple --rev=5 -- s.db"),
        (
            "snapshot restore s.db --skip-hash-check --mark-compacted=false",
            "snapshot restore --write-out=simple --skip-hash-check --data-dir=default.etcd -- s.db",
        ),
        (
            "snapshot restore --name m1 s.db --bump-revision 9 --mark-compacted",
            "snapshot restore --write-out=simple --name=m1 --bump-revision=9 --mark-compacted \
             --data-dir=m1.etcd -- s.db",
        ),
        ("defrag --data-dir d", "defrag --write-out=simple --data-dir=d"),
    ] {
        assert_eq!(asked(line), Ok(format!("etcdkit {ours}")), "{line}");
    }
    for (line, code, message) in [
        ("snapshot status", 128, "snapshot status requires exactly one argument"),
        ("snapshot status a b", 128, "snapshot status requires exactly one argument"),
        (
            "snapshot restore s.db --bump-revision 9",
            128,
            "--mark-compacted required if --revision-bump > 0",
        ),
        ("hashkv", 1, "accepts 1 arg(s), received 0"),
        ("defrag", 1, "required flag(s) \"data-dir\" not set"),
        ("verify", 1, "unknown command \"verify\" for \"etcdutl\""),
        ("snapshot status s.db --endpoints x", 1, "unknown flag: --endpoints"),
        ("snapshot status s.db -w protobuf", 4, "protobuf not supported as output format"),
    ] {
        assert_eq!(asked(line), Err((code, message.to_owned())), "{line}");
    }
}

#[test]
fn help_and_version_are_honest() {
    for line in ["", "help", "--help", "options", "endpoint", "help snapshot", "snapshot --help"] {
        let help = asked(Program::Etcdctl, line).unwrap();
        assert!(help.contains("linked as etcdctl"), "{line}: {help}");
    }
    let Ok(Asked::Text(text, Some(note))) =
        translate(Program::Etcdutl, &words("version"), &|_| None)
    else {
        panic!("no version");
    };
    assert_eq!(text, "etcdutl version: 3.7.3\nAPI version: 3.7\n");
    assert!(note.starts_with("this is etcdkit "), "{note}");
}

#[cfg(feature = "live")]
#[test]
fn every_command_of_theirs_is_one_of_ours() {
    for (program, lines) in [
        (
            Program::Etcdctl,
            &[
                "alarm list",
                "endpoint health",
                "endpoint status",
                "endpoint hashkv --rev 3",
                "member list --consistency=s --hex",
                "snapshot save s.db",
                "snapshot status s.db",
                "snapshot restore s.db",
                "compaction 5 --physical",
                "defrag --data-dir d",
                "defrag --cluster",
            ][..],
        ),
        (
            Program::Etcdutl,
            &[
                "hashkv s.db",
                "snapshot status s.db",
                "snapshot restore s.db",
                "defrag --data-dir d",
            ][..],
        ),
    ] {
        for line in lines {
            let Ok(Asked::Ours(ours)) = translate(program, &words(line), &|_| None) else {
                panic!("{line} is not translated");
            };
            assert!(Cli::try_parse_from(&ours).is_ok(), "{line}: {ours:?}");
        }
    }
}
