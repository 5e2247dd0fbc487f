//! The build cache with something else in the place of its entries.

use inrush_runtime::cache::Cache;
use std::fs;

const KEY: &str = "0123456789abcdef";

#[test]
fn a_folder_in_the_place_of_a_file_is_replaced() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = Cache::at(dir.path().to_path_buf());
    let get = || {
        cache.get_or_build(KEY, "so", |work| {
            let made = work.join("made");
            fs::write(&made, b"code").expect("written");
            Ok(made)
        })
    };
    let (path, found) = get().expect("built");
    assert!(!found);
    assert!(get().expect("found").1);
    for ext in ["so", "sum", "lock"] {
        let damaged = path.with_extension(ext);
        fs::remove_file(&path).expect("removed");
        let _ = fs::remove_file(&damaged);
        fs::create_dir_all(damaged.join("inside")).expect("a folder");
        let (again, found) = get().expect("built again");
        assert!(!found && again == path, "{ext}");
        assert_eq!(fs::read(&path).expect("a file"), b"code", "{ext}");
        assert!(get().expect("found").1, "{ext}");
    }
}
