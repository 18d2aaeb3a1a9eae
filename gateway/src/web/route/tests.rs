use std::{collections::BTreeSet, fmt::Write as _};

use utoipa::openapi::path::Parameter;

use super::*;
use crate::dialects;

const BEGIN: &str = "<!-- made of the routes by gateway/src/web/route/tests.rs; MUSTER_BLESS=1 cargo test -p muster-gateway readme writes it anew -->\n";
const END: &str = "<!-- end of the routes -->\n";

fn list() -> String {
    let mut list = String::new();
    let mut heading = "";
    for (dialect, route) in dialects::routes() {
        if dialect.name != heading {
            heading = dialect.name;
            write!(list, "\n### {heading}\n\n| | who | what |\n|---|---|---|\n").unwrap();
        }
        let paths: Vec<String> = route.shown_paths().collect();
        let others: String = paths[1..].iter().map(|path| format!(", `{path}`")).collect();
        let summary = route.operation.summary.unwrap();
        let who = route.access.word();
        writeln!(
            list,
            "| `{} {}`{others} | {who} | {summary} |",
            route.method, paths[0]
        )
        .unwrap();
    }
    list.push('\n');
    list
}

#[test]
fn the_list_in_readme_is_made_of_the_routes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).expect("where the list begins");
    let (said, after) = rest.split_once(END).expect("where the list ends");
    let list = list();
    if std::env::var_os("MUSTER_BLESS").is_some() {
        std::fs::write(path, [before, BEGIN, &list, END, after].concat()).unwrap();
        return;
    }
    assert_eq!(
        said, list,
        "gateway/README.md says something else: MUSTER_BLESS=1 writes it anew"
    );
}

#[test]
fn every_part_of_a_path_is_explained_and_no_other() {
    for (_, route) in dialects::routes() {
        let path = route.shown_paths().next().unwrap();
        let parts = path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let of_path = |parameter: &RefOr<Parameter>| match parameter {
            RefOr::T(parameter) => {
                (parameter.parameter_in == ParameterIn::Path).then(|| parameter.name.clone())
            }
            RefOr::Ref(_) => None,
        };
        let explained = route.operation.parameters.iter().flatten().filter_map(of_path);
        assert_eq!(
            parts.map(str::to_owned).collect::<BTreeSet<_>>(),
            explained.collect::<BTreeSet<_>>(),
            "{path}"
        );
    }
}
