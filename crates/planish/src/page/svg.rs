//! SVG elements as text; colours and type are classes of the page's style sheet.

use std::fmt::Write;

/// Size of text in a plot.
pub const TEXT: f64 = 12.0;

/// A drawing.
#[derive(Clone, Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Which end of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The left end.
    Start,
    /// The middle.
    Middle,
    /// The right end.
    End,
}

/// A text as it may stand in markup and in an attribute; control characters, which no document may hold, are dropped.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// How wide a letter is, as a share of its size; the faces that `plot.css` names are this wide or narrower.
fn letter(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 't' | 'f' | ' ' | '.' | ',' | ':' | ';' | '\'' | '|' | '(' | ')' | '[' | ']' => 0.4,
        'm' | 'w' | 'M' | 'W' | '%' | '=' | '+' | '<' | '>' | '\u{2026}' => 0.9,
        c if c.is_ascii_uppercase() || !c.is_ascii() => 0.72,
        c if c.is_ascii_digit() => 0.64,
        _ => 0.62,
    }
}

/// About how wide `text` is.
pub fn width_of(text: &str) -> f64 {
    text.chars().map(letter).sum::<f64>() * TEXT
}

/// `text` cut to about `width`, with an ellipsis where something is missing.
pub fn fit(text: &str, width: f64) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut room = width - letter('\u{2026}') * TEXT;
    let fits = |c: &char| {
        room -= letter(*c) * TEXT;
        room >= 0.0
    };
    text.chars().take_while(fits).chain(['\u{2026}']).collect()
}

/// Where the middle of a text of this width goes, to be near `at` and inside `left` to `right`.
pub fn middle_inside(at: f64, wide: f64, (left, right): (f64, f64)) -> f64 {
    let (first, last) = (left + 0.5 * wide, right - 0.5 * wide);
    if first > last { 0.5 * (left + right) } else { at.clamp(first, last) }
}

/// Coordinates, if all are numbers: what has no place is not drawn, least of all at zero.
fn placed<const N: usize>(coordinates: [f64; N]) -> Option<[String; N]> {
    coordinates.iter().all(|v| v.is_finite()).then(|| coordinates.map(at))
}

/// A coordinate: a tenth of a pixel is enough.
fn at(v: f64) -> String {
    let text = format!("{v:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

impl Svg {
    /// An empty drawing of this size.
    pub fn new(width: f64, height: f64) -> Self {
        Svg { width, height, body: String::new() }
    }

    /// A line.
    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let Some([x1, y1, x2, y2]) = placed([x1, y1, x2, y2]) else { return };
        let _ = write!(self.body, "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>");
    }

    /// A line through points.
    pub fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        let points = points.iter().filter_map(|(x, y)| placed([*x, *y]));
        let points: Vec<String> = points.map(|[x, y]| format!("{x},{y}")).collect();
        let _ = write!(self.body, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }

    /// A disc with a title.
    pub fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64, title: &str) {
        let Some([x, y, r]) = placed([x, y, radius]) else { return };
        let title = escape(title);
        let _ = write!(
            self.body,
            "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r}\"><title>{title}</title></circle>"
        );
    }

    /// A diamond with a title.
    pub fn diamond(&mut self, class: &str, (x, y): (f64, f64), radius: f64, title: &str) {
        let corners = [(0.0, -radius), (radius, 0.0), (0.0, radius), (-radius, 0.0)];
        let points: Vec<String> =
            corners.iter().filter_map(|(dx, dy)| placed([x + dx, y + dy])).map(|[x, y]| format!("{x},{y}")).collect();
        if points.is_empty() {
            return;
        }
        let (points, title) = (points.join(" "), escape(title));
        let _ = write!(self.body, "<polygon class=\"{class}\" points=\"{points}\"><title>{title}</title></polygon>");
    }

    /// A rectangle with a title.
    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), title: &str) {
        let Some([x, y, width, height]) = placed([x, y, width, height]) else { return };
        let title = if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\">{title}</rect>"
        );
    }

    /// A text.
    pub fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let (Some([x, y]), text) = (placed([x, y]), escape(text)) else { return };
        let _ = write!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}>{text}</text>");
    }

    /// Names with their marks from the left edge on, in as many lines as they need; returns the height they take.
    pub fn legend(&mut self, top: f64, entries: &[(String, String)]) -> f64 {
        let (mut x, mut y) = (0.0, top);
        for (class, name) in entries {
            let name = &fit(name, self.width - 26.0);
            let wide = 26.0 + width_of(name);
            if x > 0.0 && x + wide - 12.0 > self.width {
                (x, y) = (0.0, y + 18.0);
            }
            self.rect(&format!("key {class}"), (x, y + 1.0), (10.0, 10.0), "");
            self.text("", (x + 15.0, y + 10.0), Anchor::Start, name);
            x += wide;
        }
        if entries.is_empty() { 0.0 } else { y + 22.0 - top }
    }

    /// Cuts or grows the drawing to this height.
    pub fn set_height(&mut self, height: f64) {
        self.height = height;
    }

    /// The element, which names itself `label` to those who cannot see it.
    pub fn inline(&self, class: &str, label: &str) -> String {
        let ([w, h], label) = ([self.width, self.height].map(at), escape(label));
        format!(
            "<svg class=\"{class}\" role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" \
             height=\"{h}\">{}</svg>",
            self.body
        )
    }

    /// A file of its own, in the given style, with some room around the drawing.
    pub fn document(&self, label: &str, style: &str) -> String {
        const ROOM: f64 = 14.0;
        let ([w, h, start], label) =
            ([self.width + 2.0 * ROOM, self.height + 2.0 * ROOM, -ROOM].map(at), escape(label));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"{label}\" \
             viewBox=\"{start} {start} {w} {h}\" width=\"{w}\" height=\"{h}\"><title>{label}</title>\
             <style>{style}</style><rect class=\"paper\" x=\"{start}\" y=\"{start}\" width=\"{w}\" height=\"{h}\"/>{}</svg>\n",
            self.body
        )
    }
}
