//! Libraries of the vendor, found at run time: where a variable says, else where the loader looks, in the active virtual
//! environment, or in the toolkit.

use std::fs;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::error::{Error, ErrorKind};

/// Where the toolkit usually is.
const TOOLKIT: &str = "/usr/local/cuda";

/// A library and where it may be.
pub(super) struct Wanted {
    /// What people call it.
    pub what: &'static str,
    /// The variable that names the library itself, or a folder that a wheel was installed to or a virtual environment.
    pub place: &'static str,
    /// Names that the loader may know, newest first.
    pub names: &'static [&'static str],
    /// Folders of the toolkit, and of the wheels below `site-packages`.
    pub folders: &'static [&'static str],
    /// The wheel that brings it.
    pub wheel: &'static str,
}

impl Wanted {
    /// What `open` makes of the first library that it can open; an error that says where it looked when there is none.
    pub fn find<T>(&self, open: impl Fn(&Path) -> Result<T, libloading::Error>) -> Result<T, Error> {
        let wanted = std::env::var_os(self.place).filter(|p| !p.is_empty()).map(PathBuf::from);
        self.find_at(wanted.as_deref(), open)
    }

    /// The same where the variable names `wanted`.
    fn find_at<T>(
        &self,
        wanted: Option<&Path>,
        open: impl Fn(&Path) -> Result<T, libloading::Error>,
    ) -> Result<T, Error> {
        let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
        let candidates = match wanted {
            Some(place) => self.inside(place),
            None => {
                let places = active.iter().map(PathBuf::as_path).chain([Path::new(TOOLKIT)]);
                self.names.iter().map(PathBuf::from).chain(places.flat_map(|place| self.inside(place))).collect()
            }
        };
        if let Some(found) = candidates.iter().find_map(|path| open(path).ok()) {
            return Ok(found);
        }
        let Wanted { what, place, wheel, .. } = self;
        let tried: Vec<_> = candidates.iter().map(|p| p.display().to_string()).collect();
        let tried = if tried.is_empty() { "it has no library".into() } else { format!("none of {}", tried.join(", ")) };
        let looked = wanted.map_or_else(|| "the loader's folders".to_owned(), |p| format!("{place}={}", p.display()));
        Err(Error::new(ErrorKind::Unavailable, format!("no {what} in {looked}: {tried}"))
            .with_hint(format!("python3 -m pip install --target DIR {wheel}, and {place}=DIR")))
    }

    /// Libraries in `place`: itself, or in the folders of a wheel below it or below its `site-packages`.
    fn inside(&self, place: &Path) -> Vec<PathBuf> {
        if place.is_file() {
            return vec![place.to_owned()];
        }
        let mut folders = vec![place.to_owned()];
        let pythons = fs::read_dir(place.join("lib")).into_iter().flatten().flatten();
        let sites: Vec<PathBuf> = pythons.map(|python| python.path().join("site-packages")).collect();
        for root in std::iter::once(place).chain(sites.iter().map(PathBuf::as_path)) {
            folders.extend(self.folders.iter().map(|w| root.join(w)));
        }
        let named = |folder: &PathBuf| self.names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
        folders.iter().flat_map(named).filter(|path| path.is_file()).collect()
    }
}

/// The library at `path`, never closed.
///
/// # Safety
/// It may be opened at any time and has no requirements of its loader.
pub(super) unsafe fn open(path: &Path) -> Result<&'static Library, libloading::Error> {
    // SAFETY: forwarded.
    Ok(Box::leak(Box::new(unsafe { Library::new(path) }?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted = Wanted {
        what: "NVRTC",
        place: "PLANISH_NVRTC",
        names: &["libnvrtc.so.13", "libnvrtc.so.12"],
        folders: &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"],
        wheel: "a-wheel",
    };

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("planish-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_wheel_is_found_in_a_target_folder_and_in_an_environment() {
        let root = folder("wheel");
        let target = root.join("nvidia/cuda_nvrtc/lib");
        let venv = root.join("lib/python3.12/site-packages/nvidia/cu13/lib");
        for (folder, name) in [(&target, "libnvrtc.so.12"), (&venv, "libnvrtc.so.13")] {
            fs::create_dir_all(folder).expect("made");
            fs::write(folder.join(name), "").expect("written");
        }
        assert_eq!(WANTED.inside(&root), [target.join("libnvrtc.so.12"), venv.join("libnvrtc.so.13")]);
        assert_eq!(WANTED.inside(&target.join("libnvrtc.so.12")), [target.join("libnvrtc.so.12")]);
        assert_eq!(WANTED.inside(&root.join("none")), Vec::<PathBuf>::new());
        fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn a_library_that_is_nowhere_is_an_error_with_the_next_step() {
        let root = folder("no-library");
        fs::create_dir_all(&root).expect("made");
        // SAFETY: what lies there is no library.
        let find = || WANTED.find_at(Some(&root), |path| unsafe { open(path) }).map(drop);
        let empty = find().expect_err("the folder is empty");
        assert_eq!(empty.to_string(), format!("no NVRTC in PLANISH_NVRTC={}: it has no library", root.display()));
        assert_eq!(empty.hint(), Some("python3 -m pip install --target DIR a-wheel, and PLANISH_NVRTC=DIR"));
        fs::write(root.join("libnvrtc.so.12"), "no library").expect("written");
        let broken = find().expect_err("the file is none").to_string();
        assert!(broken.ends_with(&format!("none of {}", root.join("libnvrtc.so.12").display())), "{broken}");
        fs::remove_dir_all(root).expect("removed");
    }
}
