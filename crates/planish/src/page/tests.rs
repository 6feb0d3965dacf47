//! Pages as files: whole markup, nothing from outside, hostile names, and the same numbers three times.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::plot::{Axis, Bar, Kernel, Mark, Point, Row, Scale, Series};
use super::*;

/// Elements that have no end.
const VOID: [&str; 3] = ["meta", "link", "wbr"];

/// Elements that run, load or embed nothing.
const HARMLESS: &str = "html head meta link title style body main header section h1 h2 p dl div dt dd figure figcaption \
    strong span details summary table caption wbr thead tbody tr th td a svg text line polyline polygon circle rect";

/// Attributes that do neither, `href` aside.
const ATTRIBUTES: &str = "lang charset name content http-equiv rel href id class role tabindex aria-label scope viewBox \
    width height x y x1 y1 x2 y2 cx cy r points text-anchor";

/// Fails unless every element of `html` ends inside the element in which it began; returns their start tags.
#[track_caller]
pub fn check_markup(html: &str) -> Vec<&str> {
    let (mut open, mut seen) = (Vec::new(), Vec::new());
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a document type comes first");
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>') || open.last() == Some(&"style"), "a bare `>` in {:?}", clip(&rest[..at]));
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> ends another element");
            continue;
        }
        if !tag.ends_with('/') && !VOID.contains(&name_of(tag)) {
            open.push(name_of(tag));
        }
        seen.push(tag);
    }
    assert!(open.is_empty(), "never ended: {open:?}");
    seen
}

fn name_of(tag: &str) -> &str {
    tag.split([' ', '/']).next().unwrap_or_default()
}

fn clip(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Fails where `html` has an element or attribute that could load or run anything, or a link to somewhere else.
#[track_caller]
pub fn check_alone(html: &str) {
    for tag in check_markup(html) {
        assert!(HARMLESS.split_whitespace().any(|e| e == name_of(tag)), "an element <{}>", clip(tag));
        let mut parts = tag.trim_end_matches('/')[name_of(tag).len()..].split('"');
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            let name = name.trim().trim_end_matches('=');
            assert!(ATTRIBUTES.split_whitespace().any(|a| a == name), "an attribute {name:?} in <{}>", clip(tag));
            let inside = value.strip_prefix('#').is_some_and(|id| html.contains(&format!("id=\"{id}\"")));
            assert!(name != "href" || inside || value == "data:,", "a link to {value:?}");
        }
    }
    let style = html.split("<style>").nth(1).and_then(|s| s.split("</style>").next()).expect("a style");
    assert!(style.split('@').skip(1).all(|rule| rule.starts_with("media ")) && !style.contains("url("));
}

/// Fails unless every cell of every table stands in all three texts as the same text.
#[track_caller]
pub fn check_same_numbers(files: &Files) {
    let json: serde_json::Value = serde_json::from_str(&files.json).expect("JSON");
    let mut tsv = files.tsv.lines();
    for table in json["tables"].as_array().expect("tables") {
        let text = |v: &serde_json::Value| v.as_str().expect("text").replace(['\t', '\n', '\r'], " ");
        let cells = |row: &serde_json::Value| row.as_array().expect("row").iter().map(text).collect::<Vec<_>>();
        assert_eq!(tsv.next(), Some(format!("# {}", text(&table["title"])).as_str()));
        for row in std::iter::once(&table["columns"]).chain(table["rows"].as_array().expect("rows")) {
            let line: Vec<&str> = tsv.next().expect("a line for every row").split('\t').collect();
            assert_eq!(line, cells(row));
        }
        for cell in table["rows"].as_array().into_iter().flatten().flat_map(|row| row.as_array().expect("row")) {
            let shown = format!(">{}<", svg::escape(cell.as_str().expect("text")));
            assert!(files.html.contains(&shown), "{shown} is in the JSON and not on the page");
        }
        assert!(tsv.next().is_none_or(str::is_empty) && tsv.next().is_none_or(str::is_empty));
    }
    assert_eq!(tsv.next(), None);
}

const HOSTILE: &str = "<script src=\"http://x\">alert('&')</script>\t\u{7}\u{1b}[31m";

/// A report of anything, with every plot and block on it.
#[derive(Serialize, Deserialize)]
struct Sample {
    name: String,
    values: Vec<f64>,
}

impl Report for Sample {
    const KIND: &'static str = "sample";
    const VERSION: u32 = 3;

    fn page(&self) -> Page {
        let (name, v) = (self.name.clone(), &self.values);
        let mut page = Page::new(&name, format!("lead of {name}"));
        let section = page.section(&name);
        section.text(&name).facts(vec![("fact", Cell::from(&name).tone(Tone::Bad))]);
        // Zero stands for a number that is none, which JSON cannot hold.
        every_plot(section, &name, &v.iter().map(|v| if *v == 0.0 { f64::NAN } else { *v }).collect::<Vec<_>>());
        let mut table = Table::new(&name, &["who", "time|us", "why"]);
        for value in v {
            table.row(vec![name.as_str().into(), number::us(*value).into(), Cell::from(&name).linked(1)]);
        }
        section.fold(format!("more of {name}"), |s| _ = s.table(table));
        page
    }
}

fn every_plot(section: &mut Section, name: &str, v: &[f64]) {
    let name = name.to_owned();
    let points = |shift: f64| -> Vec<Point> {
        let point = |(i, y): (usize, &f64)| Point {
            x: 1.0 + i as f64,
            y: y + shift,
            bounds: Some((y - 1.0, y + 1.0)),
            label: name.clone(),
        };
        v.iter().enumerate().map(point).collect()
    };
    let row = |value: &f64| Row {
        label: name.clone(),
        value: Some(*value),
        bounds: Some((value * 0.9, value * 1.1)),
        samples: v.to_vec(),
        text: name.clone(),
        tone: Tone::Chosen,
    };
    let mark = Mark { at: v[0], label: name.clone() };
    let (title, note, x, y) = (name.clone(), name.clone(), Axis::log(&name), Axis::linear(&name));
    section.plot(Intervals {
        title: title.clone(),
        note: note.clone(),
        x: y.clone(),
        marks: vec![mark.clone()],
        rows: v.iter().map(row).chain([Row { label: name.clone(), ..Row::default() }]).collect(),
        legend: vec![(Tone::Peer, name.clone())],
    });
    let kernel = |v: &f64| Kernel { label: name.clone(), intensity: *v, gop_s: 2.0 * v, tone: Tone::Chosen };
    let (slopes, flats) = (vec![mark.clone()], vec![Mark { at: 1e4, ..mark.clone() }]);
    let (points_at, legend) = (v.iter().map(kernel).collect(), Vec::new());
    section.plot(Roofline { title: title.clone(), note: note.clone(), slopes, flats, points: points_at, legend });
    let texts = v.iter().map(|_| name.clone()).collect();
    let bars = vec![Bar { label: name.clone(), values: v.to_vec(), texts, text: name.clone() }];
    let parts = v.iter().map(|_| name.clone()).collect();
    section.plot(Stacked { title: title.clone(), note: note.clone(), x: y.clone(), parts, bars });
    let (intercept, slope) = (1.0, 0.5);
    let points_fit = points(0.0);
    section.plot(Fit {
        title: title.clone(),
        note: note.clone(),
        x: y.clone(),
        y: y.clone(),
        points: points_fit,
        intercept,
        slope,
    });
    let series = |joined| Series { name: name.clone(), points: points(2.0), joined, tone: Tone::Plain };
    section.plot(Curves { title, note, x, y, marks: vec![mark], series: vec![series(true), series(false)] });
}

#[track_caller]
fn check(name: &str, values: &[f64]) {
    let sample = Sample { name: name.to_owned(), values: values.to_vec() };
    let files = files(&sample).expect("texts");
    let elements = check_markup(&files.html);
    check_alone(&files.html);
    let names_no_place = !name.contains("http");
    assert!(!(names_no_place && files.html.replace("http-equiv", "").contains("http")), "a place outside is named");
    check_same_numbers(&files);
    assert!(!files.html.contains("NaN") && !files.html.contains("inf"), "a number that is none is drawn");
    assert_eq!(elements.iter().filter(|e| name_of(e) == "svg").count(), 2 * 5, "five plots, each wide and narrow");
}

#[test]
fn every_block_and_plot_is_whole_and_alone() {
    check("plain", &[1.5, 2.25, 1e-3, 4e5]);
    check(HOSTILE, &[1.5, 2.25]);
    check("one", &[7.0]);
    check("none of them is a time", &[0.0, -1.0]);
    check("far apart", &[1e-12, 1e15]);
}

#[test]
fn a_hostile_name_is_text() {
    let html = files(&Sample { name: HOSTILE.to_owned(), values: vec![1.0] }).expect("texts").html;
    assert!(!html.contains("<script") && !html.contains("alert('") && !html.contains('\u{1b}'));
    assert!(html.contains("&lt;script src=&quot;http://x&quot;&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;"));
}

#[test]
fn evidence_gives_the_same_three_files_again() {
    let folder = tempfile::tempdir().unwrap();
    // Values whose last binary digit a careless reader loses.
    let values = (1..400).map(|i| (f64::from(i) * 0.1).exp() * 1.000_000_000_000_000_2 / 3e11).collect();
    let first = files(&Sample { name: "again".to_owned(), values }).unwrap();
    let [html, json, tsv] = first.write(&folder.path().join("a.html")).unwrap();
    assert_eq!(read::<Sample>(&json).unwrap(), first);
    let texts = [html, json, tsv].map(|p| std::fs::read_to_string(p).unwrap());
    assert_eq!(texts, [first.html, first.json, first.tsv]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left behind");
}

#[test]
fn what_is_no_evidence_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    let cases = [
        ("", "is no evidence"),
        ("{}", "is no evidence"),
        (r#"{"planish":"tuning","version":3,"data":{}}"#, "evidence of tuning, wanted sample"),
        (r#"{"planish":"sample","version":2,"data":{}}"#, "version 2 of sample, this program reads 3"),
        (r#"{"planish":"sample","version":3,"data":{"name":"x"}}"#, "is no evidence"),
    ];
    for (text, want) in cases {
        std::fs::write(&path, text).unwrap();
        let error = read::<Sample>(&path).expect_err(text);
        assert!(format!("{error:#}").contains(want), "{error:#}");
        assert!(crate::hint::of(&error).is_some() || want.contains("is no evidence"), "{error:#}");
    }
    let wrong = must_be_html_error(&folder.path().join("page.htm"));
    assert!(wrong.contains("a report is a .html file"), "{wrong}");
    assert!(must_be_html_error(Path::new("/no/such/folder/a.html")).contains("there is no folder /no/such/folder"));
}

fn must_be_html_error(path: &Path) -> String {
    must_be_html(path).expect_err("refused").to_string()
}

#[test]
fn plots_are_read_from_data() {
    let text = r#"{"intervals":{"title":"t","x":{"label":"tokens/s","scale":"log"},
        "rows":[{"label":"a","value":3.5,"bounds":[3,4],"tone":"peer"},{"label":"heading"}]}}"#;
    let plot: Plot = serde_json::from_str(text).unwrap();
    let Plot::Intervals(intervals) = &plot else { panic!("{plot:?}") };
    assert_eq!((intervals.x.scale, intervals.rows[0].tone), (Scale::Log, Tone::Peer));
    assert!(plot.file(860.0).contains("viewBox=\"-14 -14 888 "));
}
