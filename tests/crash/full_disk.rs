//! A disk that is really full: the program itself on a small file system of its own, in a namespace of its own. Where the
//! system gives no such namespace the test says so and ends.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sala-chat");

/// Runs a script in which `/full` is a file system of 40 MB.
fn on_small_disk(home: &Path, script: &str) -> Option<Output> {
    let mount = home.join("full");
    std::fs::create_dir_all(&mount).unwrap();
    let file = home.join("script.sh");
    let begin = format!(
        "set -u\ncd {home}\nmount -t tmpfs -o size=40m full {full} || exit 99\nrun() {{ {PROGRAM} --device cpu --demo --temp 0 \
         --data-dir {full}/data --max-tokens 4 \"$@\"; }}\nPROGRAM={PROGRAM}\nDATA={full}/data\n",
        home = home.display(),
        full = mount.display()
    );
    std::fs::write(&file, begin + script).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700)).unwrap();
    let output = Command::new("unshare")
        .args(["-rm", "sh"])
        .arg(&file)
        .env_clear()
        .env("HOME", home)
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
        .env("LANG", "C.UTF-8")
        .output();
    match output {
        Ok(output) if output.status.code() != Some(99) && output.status.code() != Some(1) => Some(output),
        other => {
            println!("skipped: no file system of its own here ({other:?})");
            None
        }
    }
}

#[test]
fn a_full_disk_allows_reads_exports_and_deletions() {
    let home = tempfile::tempdir().unwrap();
    let script = r#"
        say() { echo "$1=$2"; }
        run -p "Hello there" > first.txt 2>&1; say first $?
        run -p "Something else" > second.txt 2>&1; say second $?
        dd if=/dev/zero of=full/ballast bs=4k 2> /dev/null
        rm -f full/data/sala.db-wal full/data/sala.db-shm
        dd if=/dev/zero of=full/more bs=1 2> /dev/null
        run ls --all > ls.txt 2>&1; say ls $?
        run show hello-there > show.txt 2>&1; say show $?
        run search Hello > search.txt 2>&1; say search $?
        run export hello-there out.md > export.txt 2>&1; say export $?
        test -f full/data/reserve; say reserve_left $?
        run rm -y something-else > rm.txt 2>&1; say rm $?
        test -f full/data/reserve; say reserve_after $?
        dd if=/dev/zero of=full/ballast2 bs=4k 2> /dev/null
        run -p "Now lost?" > third.txt 2> third.err; say third $?
        run doctor > doctor.txt 2>&1
        run rm -y hello-there > rm2.txt 2>&1; say rm_full $?
        rm -f full/ballast full/ballast2 full/more
        run prune --state > prune.txt 2>&1; say prune $?
        run -p "And now" > fourth.txt 2>&1; say fourth $?
        run ls --json > last.json 2>&1
        exit 0
    "#;
    let Some(output) = on_small_disk(home.path(), script) else { return };
    let codes = String::from_utf8(output.stdout).unwrap();
    let read = |name: &str| std::fs::read_to_string(home.path().join(name)).unwrap_or_default();
    let all = format!("{codes}\n{}", String::from_utf8_lossy(&output.stderr));
    let code = |name: &str| -> i32 {
        let line = codes.lines().find_map(|l| l.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name} did not run: {all}")).parse().unwrap()
    };
    for name in ["first", "second", "ls", "show", "search", "export", "rm", "prune", "fourth"] {
        assert_eq!(code(name), 0, "{name}: {}\n{all}", read(&format!("{name}.txt")));
    }
    assert!(read("ls.txt").contains("hello-there") && read("ls.txt").contains("Disk full"), "{}", read("ls.txt"));
    assert!(read("show.txt").contains("Hello there"));
    assert!(read("search.txt").contains("hello-there"));
    assert!(read("out.md").contains("Hello there"));
    assert_eq!((code("reserve_left"), code("reserve_after")), (0, 1), "given up for what writes, not before");
    assert!(read("doctor.txt").contains("/full/data cannot be written"), "{}", read("doctor.txt"));
    assert!(code("rm_full") == 74 && read("rm2.txt").lines().count() == 1, "{}", read("rm2.txt"));
    // An unsaved answer is reported and is no success, wherever it was noticed.
    assert!([7, 74].contains(&code("third")), "{}{}", read("third.txt"), read("third.err"));
    assert!(!read("third.err").is_empty());
    let last: serde_json::Value = serde_json::from_str(read("last.json").lines().last().unwrap()).unwrap();
    let names: Vec<&str> = last.as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"hello-there") && names.contains(&"and-now"), "{names:?}");
}

#[test]
fn deleting_state_by_hand_makes_room_on_a_full_disk_that_has_no_reserve_left() {
    let home = tempfile::tempdir().unwrap();
    let script = r#"
        say() { echo "$1=$2"; }
        export SALA_CHAT_SESSIONS_MIN_FREE_GIB=0
        seq 1 600 > notes.txt
        run -p "Hello there" -f notes.txt > first.txt 2>&1; say first $?
        rm -f full/data/reserve
        dd if=/dev/zero of=full/ballast bs=4k 2> /dev/null
        rm -f full/data/sala.db-wal full/data/sala.db-shm
        dd if=/dev/zero of=full/more bs=1 2> /dev/null
        run rm -y hello-there > rm.txt 2>&1; say rm $?
        rm -f full/data/segments/*
        run -c -p "And then" > then.txt 2>&1; say then $?
        rm -f full/ballast full/more
        run -c -p "And now" > next.txt 2>&1; say next $?
        run doctor --check > doctor.txt 2>&1; say doctor $?
        exit 0
    "#;
    let Some(output) = on_small_disk(home.path(), script) else { return };
    let codes = String::from_utf8_lossy(&output.stdout);
    let read = |name: &str| std::fs::read_to_string(home.path().join(name)).unwrap_or_default();
    for (code, file) in [("first=0", "first"), ("rm=74", "rm"), ("then=0", "then"), ("next=0", "next")] {
        assert!(codes.lines().any(|line| line == code), "{code}: {codes}{}", read(&format!("{file}.txt")));
    }
    assert!(read("rm.txt").contains("segments may be deleted; their state is read again"), "{}", read("rm.txt"));
    // Nothing is left that the database has and the disk does not.
    assert!(codes.contains("doctor=0"), "{codes}{}", read("doctor.txt"));
}

#[test]
fn a_read_only_disk_is_reported_once() {
    let home = tempfile::tempdir().unwrap();
    let script = r#"
        run -p "Hello there" > first.txt 2>&1
        mount -o remount,ro full || exit 99
        run -p "Something else" > second.txt 2> second.err; echo "second=$?"
        run -p "Go on" -c > third.txt 2> third.err
        run rm -y hello-there > rm.txt 2>&1; echo "rm=$?"
        exit 0
    "#;
    let Some(output) = on_small_disk(home.path(), script) else { return };
    let codes = String::from_utf8_lossy(&output.stdout);
    assert!(codes.contains("second=74") && codes.contains("rm=74"), "{output:?}");
    let read = |name: &str| std::fs::read_to_string(home.path().join(name)).unwrap_or_default();
    let stderr = read("second.err");
    // Answers of these tests are cut off, which is reported too.
    let lines: Vec<&str> = stderr.lines().filter(|l| !l.contains("cut off at")).collect();
    assert!(lines.len() == 2 && lines.iter().all(|l| l.contains("nothing is saved")), "{stderr}");
    assert!(lines[1].starts_with("sala-chat: not saved: "), "{stderr}");
    // A lock that cannot be written either is no news.
    assert!(read("third.err").contains("not saved") && !read("third.err").contains(".lock"), "{}", read("third.err"));
    let rm = read("rm.txt");
    assert!(rm.contains("nothing is saved") && rm.lines().count() == 1, "{rm}");
}

#[test]
fn texts_are_readable_in_a_folder_that_takes_no_new_files() {
    let home = tempfile::tempdir().unwrap();
    let script = r#"
        run -p "Hello there" > first.txt 2>&1
        mkdir full/rw && mount --bind full/data full/rw || exit 99
        mount --bind full/data full/data && mount -o remount,bind,ro full/data || exit 99
        for part in sala.db locks segments; do mount --bind full/rw/$part full/data/$part || exit 99; done
        run ls --all > ls.txt 2>&1; echo "ls=$?"
        exit 0
    "#;
    let Some(output) = on_small_disk(home.path(), script) else { return };
    let listed = std::fs::read_to_string(home.path().join("ls.txt")).unwrap_or_default();
    assert!(String::from_utf8_lossy(&output.stdout).contains("ls=0"), "{output:?} {listed}");
    assert!(listed.contains("texts can be read") && listed.contains("hello-there"), "{listed}");
}

/// Moments of kills, repeatable: `SALA_SEED=N`.
fn rounds() -> (u64, Vec<(u32, u32)>) {
    let seed = std::env::var("SALA_SEED").map_or(3, |v| v.parse().unwrap());
    let count = if std::env::var("SALA_PROOF").is_ok_and(|v| v == "full") { 40 } else { 8 };
    let mut random = sala_chat::core::SplitMix64::new(seed);
    // Free KB, and the time of the kill in thousandths of a whole run.
    let left =
        |i: usize, random: &mut sala_chat::core::SplitMix64| random.below(if i.is_multiple_of(2) { 160 } else { 12 });
    (seed, (0..count).map(|i| (left(i, &mut random) as u32, 100 + random.below(1100) as u32)).collect())
}

#[test]
fn kill_nine_on_a_full_disk_loses_nothing_reported_as_saved() {
    let home = tempfile::tempdir().unwrap();
    let (seed, rounds) = rounds();
    let mut script = String::from(
        r#"
        say() { echo "$1=$2"; }
        now() { date +%s%N; }
        begun=$(now)
        run -p "Hello there" > hello.txt 2>&1; say hello $?
        whole=$(( ($(now) - begun) / 1000000 ))
        run -p "Something else" --json > else.txt 2>&1; say else $?
        # Round, KB left free, share of a run after which it is killed. In every other round there is no reserve left.
        round() {
            rm -f full/ballast
            test $(( $1 % 2 )) = 0 || rm -f full/data/reserve
            dd if=/dev/zero of=full/ballast bs=4k 2> /dev/null
            truncate -s "-$2K" full/ballast
            ( exec "$PROGRAM" --device cpu --demo --temp 0 --data-dir "$DATA" --max-tokens 4 -p "Round $1 of many" --json \
                > "round$1.json" 2> "round$1.err" ) &
            pid=$!
            ms=$(( whole * $3 / 1000 ))
            sleep "$(( ms / 1000 )).$(printf %03d $(( ms % 1000 )))"
            kill -9 $pid 2> /dev/null
            wait $pid; say "round$1" $?
            run show hello-there > "show$1.txt" 2>&1; say "show$1" $?
        }
        "#,
    );
    for (i, (left, share)) in rounds.iter().enumerate() {
        script.push_str(&format!("round {i} {left} {share}\n"));
    }
    script.push_str(
        r#"
        rm -f full/ballast
        run doctor --check > doctor.txt 2>&1; say doctor $?
        run ls --json > ls.json 2> ls.err; say ls $?
        run -p "And now" > last.txt 2>&1; say last $?
        for i in $(seq 0 99); do
            test -f "round$i.json" || break
            run show "round-$i-of-many" --json > "text$i.json" 2> /dev/null
        done
        exit 0
        "#,
    );
    let Some(output) = on_small_disk(home.path(), &script) else { return };
    let codes = String::from_utf8(output.stdout).unwrap();
    let read = |name: &str| std::fs::read_to_string(home.path().join(name)).unwrap_or_default();
    let code = |name: &str| -> i32 {
        let line = codes.lines().find_map(|l| l.strip_prefix(&format!("{name}=")));
        let all = String::from_utf8_lossy(&output.stderr);
        line.unwrap_or_else(|| panic!("{name} did not run: {codes}\n{all}")).parse().unwrap()
    };
    for name in ["hello", "else", "doctor", "ls", "last"] {
        assert_eq!(
            code(name),
            0,
            "seed {seed}: {name}: {}{}",
            read(&format!("{name}.txt")),
            read(&format!("{name}.err"))
        );
    }
    let listed = read("ls.json");
    assert!(listed.contains("hello-there") && listed.contains("something-else"), "{listed}");
    let (mut killed, mut saved, mut refused) = (0, 0, 0);
    for (i, (left, _)) in rounds.iter().enumerate() {
        let here = format!("seed {seed}, round {i}, {left} KB left");
        assert_eq!(code(&format!("show{i}")), 0, "{here}: {}", read(&format!("show{i}.txt")));
        assert!(read(&format!("show{i}.txt")).contains("Hello there"), "{here}");
        match code(&format!("round{i}")) {
            137 => killed += 1,
            0 => {
                saved += 1;
                let object: serde_json::Value = serde_json::from_str(&read(&format!("round{i}.json"))).unwrap();
                let kept: serde_json::Value = serde_json::from_str(&read(&format!("text{i}.json"))).expect(&here);
                let texts: Vec<&str> =
                    kept["messages"].as_array().unwrap().iter().map(|m| m["text"].as_str().unwrap()).collect();
                assert_eq!(texts, [format!("Round {i} of many").as_str(), object["text"].as_str().unwrap()], "{here}");
            }
            7 | 74 => {
                refused += 1;
                let object: serde_json::Value = serde_json::from_str(&read(&format!("round{i}.json"))).expect(&here);
                assert!(object["not_saved"].is_string() || object["error"].is_string(), "{here}: {object}");
            }
            other => panic!("{here}: ended with {other}: {}", read(&format!("round{i}.err"))),
        }
    }
    println!(
        "seed {seed}: {killed} kills on a full disk, {saved} saved, {refused} said that they are not, nothing lost"
    );
}

#[test]
fn without_a_free_inode_texts_are_read_as_on_a_full_disk() {
    let home = tempfile::tempdir().unwrap();
    let script = r#"
        say() { echo "$1=$2"; }
        run -p "Hello there" > first.txt 2>&1; say first $?
        rm -f full/data/sala.db-wal full/data/sala.db-shm
        mkdir few
        mount -t tmpfs -o size=40m,nr_inodes=$(($(find full/data | wc -l) + 1)) few few || exit 99
        cp -a full/data few/data
        on_few() { $PROGRAM --device cpu --demo --temp 0 --data-dir few/data --max-tokens 4 "$@"; }
        on_few ls --all > ls.txt 2>&1; say ls $?
        on_few show hello-there > show.txt 2>&1; say show $?
        on_few export hello-there - > export.txt 2>&1; say export $?
        on_few search Hello > search.txt 2>&1; say search $?
        on_few rm -y hello-there > rm.txt 2>&1; say rm $?
        exit 0
    "#;
    let Some(output) = on_small_disk(home.path(), script) else { return };
    let codes = String::from_utf8(output.stdout).unwrap();
    let read = |name: &str| std::fs::read_to_string(home.path().join(name)).unwrap_or_default();
    for name in ["ls", "show", "export", "search"] {
        let text = read(&format!("{name}.txt"));
        assert!(codes.contains(&format!("{name}=0")), "{name}: {text}\n{codes}");
        assert!(text.contains("nothing is saved") && text.to_lowercase().contains("hello"), "{name}: {text}");
    }
    assert!(codes.contains("rm=74"), "{}\n{codes}", read("rm.txt"));
}
