//! Which files of a repository a checkpoint means: `VARIANT` is a quantisation, a file, or empty (seed 000; llama.cpp's `-hf` reads names alike).
//!
//! A quantisation is the end of a file's name (`model-Q4_K_M.gguf`) or a folder of such files; a model in several files
//! (`…-00001-of-00003.gguf`) counts as one. Where several fit, the one that says nothing more wins: `Q4_K_M` is not `UD-Q4_K_M` if both are
//! there.

use std::collections::BTreeMap;

use muster_proto::v1::{HubCheckpoint, HubVariant};

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepoFile {
    /// Its path in the repository.
    pub(crate) path: String,
    /// Its size in bytes; 0 if unknown.
    pub(crate) size: u64,
    /// What names its content, if that is known without a look into it.
    pub(crate) etag: Option<String>,
}

/// The files that a checkpoint means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// The model's, the first one first; of a folder, all.
    pub(crate) model: Vec<String>,
    /// The projector's.
    pub(crate) mmproj: Option<String>,
}

/// Why a checkpoint means nothing in a repository.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoSuchFile {
    #[error("it has no GGUF file")]
    NoGguf,
    #[error("it has no variant `{0}`; it has {1}")]
    Variant(String, String),
    #[error("it has no file `{0}`")]
    File(String),
    #[error("of `{0}`, which is in several files, only {1} are there")]
    Parts(String, usize),
}

/// Quantisations that are offered first, in this order, where a repository has them; the first of them is the usual one.
const USUAL: [&str; 4] = ["Q4_K_M", "UD-Q4_K_XL", "Q8_0", "Q4_0"];

/// One model of a repository, in one file or several.
#[derive(Debug)]
struct Group<'a> {
    /// Path without number and ending.
    stem: &'a str,
    files: Vec<&'a RepoFile>,
    /// Files there should be.
    parts: usize,
}

impl Selection {
    /// All its files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &String> {
        self.model.iter().chain(&self.mmproj)
    }
}

/// Finds the files of `checkpoint` in a repository.
///
/// # Errors
/// Nothing there has that name, or a part of it is missing.
pub(crate) fn select(files: &[RepoFile], checkpoint: &HubCheckpoint) -> Result<Selection, NoSuchFile> {
    let mmproj = match checkpoint.mmproj.as_str() {
        "" => None,
        name => Some(named(files, name)?.path.clone()),
    };
    let model = if checkpoint.folder {
        folder(files)
    } else {
        gguf(files, &checkpoint.variant)?
    };
    Ok(Selection { model, mmproj })
}

/// The variants of a repository, the usual ones first.
pub(crate) fn variants(files: &[RepoFile]) -> Vec<HubVariant> {
    let mut found: Vec<HubVariant> = groups(files)
        .iter()
        .filter(|group| group.files.len() == group.parts)
        .map(|group| HubVariant {
            name: group.variant(),
            files: group.files.iter().map(|file| file.path.clone()).collect(),
            size_bytes: group.files.iter().map(|file| file.size).sum(),
        })
        .collect();
    let rank = |name: &str| {
        let usual = USUAL.iter().position(|usual| usual.eq_ignore_ascii_case(name));
        usual.unwrap_or(USUAL.len())
    };
    found.sort_by(|a, b| (rank(&a.name), &a.name).cmp(&(rank(&b.name), &b.name)));
    found
}

/// Projectors of a repository.
pub(crate) fn projectors(files: &[RepoFile]) -> Vec<String> {
    let found = files
        .iter()
        .filter(|file| is_gguf(&file.path) && is_projector(&file.path));
    found.map(|file| file.path.clone()).collect()
}

/// Whether a file may be one of a checkpoint's, judged by its path alone.
pub(super) fn is_of(path: &str, checkpoint: &HubCheckpoint) -> bool {
    if !checkpoint.mmproj.is_empty() && is_named(path, &checkpoint.mmproj) {
        return true;
    }
    let file = RepoFile {
        path: path.to_owned(),
        size: 0,
        etag: None,
    };
    let model = HubCheckpoint {
        mmproj: String::new(),
        ..checkpoint.clone()
    };
    match select(&[file], &model) {
        Ok(selection) => !selection.model.is_empty(),
        Err(NoSuchFile::Parts(..)) => true,
        Err(NoSuchFile::NoGguf | NoSuchFile::Variant(..) | NoSuchFile::File(_)) => false,
    }
}

/// Whether a file is meant by a path or by its name alone.
pub(super) fn is_named(path: &str, name: &str) -> bool {
    path == name || base(path) == name
}

/// A file by its path, or by its name alone.
fn named<'a>(files: &'a [RepoFile], name: &str) -> Result<&'a RepoFile, NoSuchFile> {
    let by_path = files.iter().find(|file| file.path == name);
    by_path
        .or_else(|| files.iter().find(|file| is_named(&file.path, name)))
        .ok_or_else(|| NoSuchFile::File(name.to_owned()))
}

fn gguf(files: &[RepoFile], variant: &str) -> Result<Vec<String>, NoSuchFile> {
    let groups = groups(files);
    let found = if is_gguf(variant) {
        let file = named(files, variant)?;
        let has = |group: &&Group<'_>| group.files.contains(&file);
        // A projector may be named too, and is a model by itself then.
        match groups.iter().find(has) {
            Some(group) => Some(group),
            None => return Ok(vec![file.path.clone()]),
        }
    } else if variant.is_empty() {
        let usual = USUAL.first().and_then(|usual| best(&groups, usual));
        usual.or_else(|| groups.first())
    } else {
        best(&groups, variant)
    };
    match found {
        Some(group) if group.files.len() == group.parts => {
            Ok(group.files.iter().map(|file| file.path.clone()).collect())
        }
        Some(group) => Err(NoSuchFile::Parts(group.stem.to_owned(), group.files.len())),
        None if groups.is_empty() => Err(NoSuchFile::NoGguf),
        None => {
            let names: Vec<String> = groups.iter().map(Group::variant).collect();
            Err(NoSuchFile::Variant(variant.to_owned(), names.join(", ")))
        }
    }
}

fn best<'a, 'b>(groups: &'a [Group<'b>], variant: &str) -> Option<&'a Group<'b>> {
    let fitting = groups
        .iter()
        .filter_map(|group| Some((group.fits(variant)?, group)));
    fitting.min_by_key(|(more, _)| *more).map(|(_, group)| group)
}

/// The GGUF models of a repository, by path.
fn groups(files: &[RepoFile]) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<(&str, usize), Vec<(usize, &RepoFile)>> = BTreeMap::new();
    for file in files
        .iter()
        .filter(|file| is_gguf(&file.path) && !is_projector(&file.path))
    {
        let (stem, part, parts) = parts_of(&file.path);
        groups.entry((stem, parts)).or_default().push((part, file));
    }
    let group = |((stem, parts), mut files): ((_, usize), Vec<(usize, _)>)| {
        files.sort_by_key(|(part, _)| *part);
        Group {
            stem,
            files: files.into_iter().map(|(_, file)| file).collect(),
            parts,
        }
    };
    groups.into_iter().map(group).collect()
}

/// `NAME-00002-of-00003.gguf` is part 2 of 3 of `NAME`; anything else part 1 of 1.
fn parts_of(path: &str) -> (&str, usize, usize) {
    let stem = path
        .get(..path.len().saturating_sub(".gguf".len()))
        .unwrap_or(path);
    let split = || {
        let (rest, parts) = stem.rsplit_once("-of-")?;
        let (name, part) = rest.rsplit_once('-')?;
        let number = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok()).flatten();
        Some((name, number(part)?, number(parts)?))
    };
    split().unwrap_or((stem, 1, 1))
}

impl Group<'_> {
    /// How much more its name says than `variant`, in bytes of the quantisation's own word; none if it says something else.
    fn fits(&self, variant: &str) -> Option<usize> {
        let own = self.variant();
        let ends = |text: &str| {
            let start = text.len().checked_sub(variant.len())?;
            let end = text.get(start..)?;
            let boundary = match start.checked_sub(1).map(|before| text.as_bytes().get(before)) {
                None | Some(Some(b'-' | b'.' | b'/')) => true,
                // `XS` is not `IQ4_XS`, but `Q4_0` is `model_Q4_0`.
                Some(Some(b'_')) => own == base(self.stem),
                Some(Some(_) | None) => false,
            };
            (end.eq_ignore_ascii_case(variant) && boundary).then_some(())
        };
        let folder = self.stem.rsplit_once('/').map(|(folder, _)| folder);
        ends(self.stem)
            .or_else(|| folder.and_then(ends))
            .map(|()| own.len().abs_diff(variant.len()))
    }

    /// What tells it from the others: the quantisation at the end of its name, or its whole name.
    fn variant(&self) -> String {
        let name = base(self.stem);
        let word = |word: &str| {
            let upper = word.to_ascii_uppercase();
            let digits = |text: &str| text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
            let quantised = ["IQ", "TQ", "Q"]
                .iter()
                .any(|kind| upper.strip_prefix(kind).is_some_and(digits));
            quantised
                || matches!(
                    upper.as_str(),
                    "F16" | "BF16" | "F32" | "FP16" | "MXFP4" | "NVFP4"
                )
        };
        let quantised = name.rsplit_once(['-', '.']).filter(|(_, last)| word(last));
        let Some((rest, last)) = quantised else {
            let folder = self.stem.rsplit_once('/').map(|(folder, _)| base(folder));
            return folder.unwrap_or(name).to_owned();
        };
        // Unsloth's dynamic quantisations.
        if rest.to_ascii_uppercase().ends_with("-UD") {
            return format!("UD-{last}");
        }
        last.to_owned()
    }
}

/// Everything an engine may read from a folder: not the same weights in older formats, nor what is for people.
fn folder(files: &[RepoFile]) -> Vec<String> {
    let ends = |path: &str, endings: &[&str]| {
        let lower = path.to_ascii_lowercase();
        endings.iter().any(|ending| lower.ends_with(ending))
    };
    let safetensors = files.iter().any(|file| ends(&file.path, &[".safetensors"]));
    let wanted = |file: &&RepoFile| {
        let hidden = base(&file.path).starts_with('.');
        let older = ends(
            &file.path,
            &[".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".gguf"],
        );
        let original = file.path.starts_with("original/");
        let people = ends(&file.path, &[".md", ".png", ".jpg", ".pdf"]);
        !hidden && !people && !(safetensors && (older || original))
    };
    files
        .iter()
        .filter(wanted)
        .map(|file| file.path.clone())
        .collect()
}

fn base(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, base)| base)
}

fn is_gguf(path: &str) -> bool {
    path.len() > 5 && path.to_ascii_lowercase().ends_with(".gguf")
}

fn is_projector(path: &str) -> bool {
    base(path).to_ascii_lowercase().contains("mmproj")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo(paths: &[&str]) -> Vec<RepoFile> {
        let file = |path: &&str| RepoFile {
            path: (*path).to_owned(),
            size: 10,
            etag: None,
        };
        paths.iter().map(file).collect()
    }

    fn model(paths: &[&str], variant: &str) -> Result<Vec<String>, NoSuchFile> {
        let checkpoint = HubCheckpoint {
            variant: variant.to_owned(),
            ..HubCheckpoint::default()
        };
        select(&repo(paths), &checkpoint).map(|selection| selection.model)
    }

    const REPO: [&str; 10] = [
        ".gitattributes",
        "BF16/M-BF16-00002-of-00002.gguf",
        "BF16/M-BF16-00001-of-00002.gguf",
        "M-Q4_0.gguf",
        "M-Q4_K_M.gguf",
        "M-IQ4_XS.gguf",
        "M-UD-Q4_K_M.gguf",
        "README.md",
        "mmproj-F16.gguf",
        "UD-Q2_K_XL/M-00001-of-00001.gguf",
    ];

    #[test]
    fn a_quantisation_is_the_end_of_a_name_or_a_folder() {
        for (variant, file) in [
            ("Q4_0", "M-Q4_0.gguf"),
            ("q4_k_m", "M-Q4_K_M.gguf"),
            ("UD-Q4_K_M", "M-UD-Q4_K_M.gguf"),
            ("", "M-Q4_K_M.gguf"),
            ("M-IQ4_XS.gguf", "M-IQ4_XS.gguf"),
            ("UD-Q2_K_XL", "UD-Q2_K_XL/M-00001-of-00001.gguf"),
            ("mmproj-F16.gguf", "mmproj-F16.gguf"),
        ] {
            assert_eq!(model(&REPO, variant).unwrap(), [file], "{variant}");
        }
        // F16 is no BF16 and the projector is no model; XS alone is no quantisation.
        for variant in ["F16", "XS", "Q4", "K_M2"] {
            assert!(
                matches!(model(&REPO, variant), Err(NoSuchFile::Variant(..))),
                "{variant}"
            );
        }
    }

    #[test]
    fn all_parts_of_a_model_are_meant_in_their_order() {
        let parts = [
            "BF16/M-BF16-00001-of-00002.gguf",
            "BF16/M-BF16-00002-of-00002.gguf",
        ];
        assert_eq!(model(&REPO, "BF16").unwrap(), parts);
        assert_eq!(model(&REPO, "M-BF16-00002-of-00002.gguf").unwrap(), parts);
        let error = model(&["M-Q8_0-00001-of-00003.gguf"], "Q8_0").unwrap_err();
        assert_eq!(error, NoSuchFile::Parts("M-Q8_0".to_owned(), 1));
    }

    #[test]
    fn a_projector_is_found_by_name() {
        let mut checkpoint = HubCheckpoint {
            variant: "Q4_0".to_owned(),
            mmproj: "mmproj-F16.gguf".to_owned(),
            ..HubCheckpoint::default()
        };
        let files = repo(&REPO);
        let selection = select(&files, &checkpoint).unwrap();
        assert_eq!(selection.mmproj.as_deref(), Some("mmproj-F16.gguf"));
        assert_eq!(selection.files().count(), 2);
        "mmproj-F32.gguf".clone_into(&mut checkpoint.mmproj);
        assert_eq!(
            select(&files, &checkpoint),
            Err(NoSuchFile::File("mmproj-F32.gguf".to_owned()))
        );
        assert_eq!(projectors(&files), ["mmproj-F16.gguf"]);
    }

    #[test]
    fn variants_are_listed_with_the_usual_ones_first() {
        let names: Vec<String> = variants(&repo(&REPO)).into_iter().map(|one| one.name).collect();
        assert_eq!(
            names,
            ["Q4_K_M", "Q4_0", "BF16", "IQ4_XS", "UD-Q2_K_XL", "UD-Q4_K_M"]
        );
        assert!(variants(&repo(&["README.md"])).is_empty());
        assert_eq!(model(&["README.md"], "Q4_0"), Err(NoSuchFile::NoGguf));
        assert_eq!(model(&["ggml-model.gguf"], "").unwrap(), ["ggml-model.gguf"]);
        assert_eq!(model(&["m_Q4_0.gguf"], "Q4_0").unwrap(), ["m_Q4_0.gguf"]);
    }

    #[test]
    fn a_folder_is_what_an_engine_reads() {
        let checkpoint = HubCheckpoint {
            folder: true,
            ..HubCheckpoint::default()
        };
        let files = repo(&[
            ".gitattributes",
            "README.md",
            "config.json",
            "model.safetensors",
            "original/consolidated.00.pth",
            "pytorch_model.bin",
            "tokenizer.json",
        ]);
        let selection = select(&files, &checkpoint).unwrap();
        assert_eq!(
            selection.model,
            ["config.json", "model.safetensors", "tokenizer.json"]
        );
    }
}
