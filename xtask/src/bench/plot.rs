//! A plot as SVG text: bars to the right of a line are faster than ext4, to the left slower, by powers of two.

/// Pixels for the names, for a factor of two, and for a line.
const NAMES: f64 = 470.0;
const OCTAVE: f64 = 60.0;
const ROW: f64 = 22.0;
/// Bars end here, on both sides, at this factor.
const OCTAVES_MAX: f64 = 5.0;

/// Bars of ratios; 1 is no bar at all.
pub(super) fn bars(title: &str, bars: &[(String, f64)]) -> String {
    let middle = NAMES + OCTAVES_MAX * OCTAVE;
    let (width, height) = (middle + OCTAVES_MAX * OCTAVE + 70.0, 60.0 + ROW * bars.len() as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"15\">{}</text>\n",
        escape(title)
    );
    for octave in -(OCTAVES_MAX as i32)..=OCTAVES_MAX as i32 {
        let x = middle + f64::from(octave) * OCTAVE;
        let label = if octave < 0 { format!("1/{}", 1 << -octave) } else { format!("{}", 1 << octave) };
        let colour = if octave == 0 { "#444" } else { "#ddd" };
        svg += &format!("<line x1=\"{x}\" x2=\"{x}\" y1=\"42\" y2=\"{height}\" stroke=\"{colour}\"/>\n");
        svg += &format!("<text x=\"{x}\" y=\"38\" text-anchor=\"middle\" fill=\"#666\">{label}</text>\n");
    }
    for (index, (name, ratio)) in bars.iter().enumerate() {
        let top = 46.0 + ROW * index as f64;
        let length = ratio.log2().clamp(-OCTAVES_MAX, OCTAVES_MAX) * OCTAVE;
        let (x, colour) = if length < 0.0 { (middle + length, "#c0603a") } else { (middle, "#2f7d5b") };
        let text = top + 14.0;
        svg += &format!("<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>\n", NAMES - 8.0, escape(name));
        svg += &format!(
            "<rect x=\"{x:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" fill=\"{colour}\"/>\n",
            top + 3.0,
            length.abs(),
            ROW - 7.0
        );
        let (at, anchor) = if length < 0.0 { (x - 4.0, "end") } else { (x + length + 4.0, "start") };
        svg += &format!(
            "<text x=\"{at:.1}\" y=\"{text}\" text-anchor=\"{anchor}\">{}</text>\n",
            crate::text::short(*ratio)
        );
    }
    svg + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::bars;

    #[test]
    fn bars_lie_on_their_side_and_names_are_escaped() {
        let svg = bars("a & b", &[("slow <x>".to_owned(), 0.5), ("fast".to_owned(), 4.0)]);
        assert!(svg.contains("a &amp; b") && svg.contains("slow &lt;x&gt;"));
        assert!(svg.contains("width=\"60.0\"") && svg.contains("width=\"120.0\""), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
