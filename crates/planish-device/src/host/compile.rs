//! Turns kernel text into an executable with the system's C++ compiler, kept by the hash of all that went in.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::Mode;
use crate::error::{Error, ErrorKind};

const EXECUTOR: &str = include_str!("executor.cpp");
const EXECUTOR_HEADER: &str = include_str!("executor.h");
const PRELUDE: &str = include_str!("../dialect/host.h");
/// Compilers tried in turn when `CXX` names none.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];

/// A C++ compiler and where its results are kept.
pub(super) struct Compiler {
    command: String,
    /// First line of its `--version`.
    pub version: String,
    cache: PathBuf,
    mode: Mode,
}

impl Compiler {
    /// The compiler `wanted`, else that of `CXX`, else the first of the usual names that runs; an error when there is none.
    pub fn find(cache: PathBuf, mode: Mode, wanted: Option<String>) -> Result<Compiler, Error> {
        let wanted = wanted.or_else(|| std::env::var("CXX").ok().filter(|c| !c.is_empty()));
        let names = wanted.map_or(COMPILERS.map(str::to_owned).to_vec(), |w| vec![w]);
        for command in &names {
            let answer = Command::new(command).arg("--version").output();
            if let Some(output) = answer.ok().filter(|o| o.status.success()) {
                let text = String::from_utf8_lossy(&output.stdout);
                let version = text.lines().next().unwrap_or_default().trim().to_owned();
                return Ok(Compiler { command: command.clone(), version, cache, mode });
            }
        }
        let message = format!("no C++ compiler: none of {} runs", names.join(", "));
        Err(Error::new(ErrorKind::Unavailable, message).with_hint("apt install g++, or set CXX"))
    }

    /// The executable of `text` with its `SHAPE_*` constants, of all kernels in it; errors speak of `name`.
    pub fn executable(&self, name: &str, text: &str, shapes: &BTreeMap<String, i64>) -> Result<PathBuf, Error> {
        let flags: Vec<String> = shapes.iter().map(|(k, v)| format!("-D{k}={v}")).collect();
        let hash = self.hash(&[text, &flags.join(" ")]);
        // Entry points of one text share a program.
        let target = self.cache.join(format!("program-{hash}"));
        if target.is_file() {
            return Ok(target);
        }
        // What did not compile once does not compile the next time, whatever shape or run asks for it.
        let refused = target.with_extension("refused");
        if let Ok(log) = fs::read_to_string(&refused) {
            return Err(does_not_compile(name, &log));
        }
        self.ready()?;
        let executor = self.object()?;
        let source =
            self.cache.join(format!("kernels-{hash}.{}.{:?}.cpp", std::process::id(), std::thread::current().id()));
        fs::write(&source, format!("#include \"host.h\"\n{text}")).map_err(|e| io(&source, &e))?;
        let mut command = self.command(self.mode.flags());
        command.args(&flags).arg("-w").arg(&source).arg(&executor);
        let built = self.build(command, &target);
        // The text stays in the cache only where it is needed to read an error.
        let _ = fs::remove_file(&source);
        match built? {
            Ok(()) => Ok(target),
            Err(log) => {
                // Where it cannot be kept, the next run compiles again.
                let _ = fs::write(&refused, &log);
                Err(does_not_compile(name, &log))
            }
        }
    }

    /// The executor's object file for this mode.
    fn object(&self) -> Result<PathBuf, Error> {
        let target = self.cache.join(format!("executor-{}.o", self.hash(&[])));
        if !target.is_file() {
            let lock = self.cache.join("executor.lock");
            let lock = File::create(&lock).and_then(|f| f.lock().map(|()| f)).map_err(|e| io(&lock, &e))?;
            if !target.is_file() {
                let mut command = self.command(self.mode.executor_flags());
                command.arg("-c").arg(self.cache.join(self.sources()).join("executor.cpp"));
                self.build(command, &target)?.map_err(|log| does_not_compile("executor", &log))?;
            }
            drop(lock);
        }
        Ok(target)
    }

    /// The folder of the executor's sources, by their hash.
    fn sources(&self) -> String {
        format!("src-{}", self.hash(&[]))
    }

    /// Writes the sources that every compilation reads.
    fn ready(&self) -> Result<(), Error> {
        let folder = self.cache.join(self.sources());
        fs::create_dir_all(&folder).map_err(|e| io(&folder, &e))?;
        for (name, text) in [("executor.cpp", EXECUTOR), ("executor.h", EXECUTOR_HEADER), ("host.h", PRELUDE)] {
            let path = folder.join(name);
            if !path.is_file() {
                let part = folder.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
                fs::write(&part, text).and_then(|()| fs::rename(&part, &path)).map_err(|e| io(&path, &e))?;
            }
        }
        Ok(())
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.command);
        command.args(["-std=c++20", "-g1", "-fno-omit-frame-pointer"]).args(flags);
        command.arg("-I").arg(self.cache.join(self.sources()));
        command
    }

    /// Runs the compiler; inside are the errors that it found in the text, outside what kept it from its work.
    fn build(&self, mut command: Command, target: &Path) -> Result<Result<(), String>, Error> {
        let part = target.with_extension(format!("part{}{:?}", std::process::id(), std::thread::current().id()));
        let output = command.arg("-o").arg(&part).output().map_err(|e| io(target, &e))?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr);
            let errors: Vec<&str> = log.lines().filter(|l| l.contains("error")).take(8).collect();
            // One that was killed, or that had no room for its files, has found nothing.
            if output.status.code() != Some(1) || !log.contains(" error: ") || log.contains("No space left") {
                let message = format!("{} ended with {}: {}", self.command, output.status, log.trim());
                return Err(Error::new(ErrorKind::Build, message));
            }
            return Ok(Err(errors.join("\n")));
        }
        fs::rename(&part, target).map(Ok).map_err(|e| io(target, &e))
    }

    fn hash(&self, parts: &[&str]) -> String {
        let mut hash = Sha256::new();
        let fixed = [
            EXECUTOR,
            EXECUTOR_HEADER,
            PRELUDE,
            // Machines of two kinds may share a home, and one version of a compiler.
            std::env::consts::ARCH,
            &self.version,
            &self.mode.flags().join(" "),
            &self.mode.executor_flags().join(" "),
        ];
        for part in fixed.iter().chain(parts) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().iter().take(10).map(|b| format!("{b:02x}")).collect()
    }
}

fn does_not_compile(name: &str, log: &str) -> Error {
    Error::new(ErrorKind::Build, format!("{name} does not compile: {log}"))
}

fn io(path: &Path, e: &std::io::Error) -> Error {
    let error = Error::new(ErrorKind::Build, format!("{}: {e}", path.display()));
    if e.kind() == std::io::ErrorKind::StorageFull { error.with_hint("make room there") } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_by_everything_that_made_them() {
        let compiler = |version: &str, mode| Compiler {
            command: "c++".into(),
            version: version.into(),
            cache: PathBuf::from("cache"),
            mode,
        };
        let base = compiler("c++ 12", Mode::Checked).hash(&["text", "-DSHAPE_A=1"]);
        let others = [
            compiler("c++ 13", Mode::Checked).hash(&["text", "-DSHAPE_A=1"]),
            compiler("c++ 12", Mode::Address).hash(&["text", "-DSHAPE_A=1"]),
            compiler("c++ 12", Mode::Checked).hash(&["text", "-DSHAPE_A=2"]),
            compiler("c++ 12", Mode::Checked).hash(&["tex", "t-DSHAPE_A=1"]),
        ];
        assert!(others.iter().all(|other| *other != base), "{base} {others:?}");
        assert_eq!(base, compiler("c++ 12", Mode::Checked).hash(&["text", "-DSHAPE_A=1"]));
    }
}
