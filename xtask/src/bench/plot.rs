//! Plots as SVG text: bars that are faster than ext4 to the right of a line, and slower to the left, by powers of two; points of
//! several series over two axes from 0, or in panels of their own.

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

/// Pixels of an axis, and beside it.
const AXIS: f64 = 400.0;
const BESIDE: f64 = 60.0;
/// For the names of series, to the right of the axes.
const LEGEND: f64 = 160.0;
/// Of the series, by turns.
const COLOURS: [&str; 4] = ["#2f7d5b", "#c0603a", "#3a6ac0", "#8a5bb0"];
/// Labels on an axis beyond 0.
const TICKS: u32 = 4;

/// Points of named series, both axes linear and from 0.
pub(super) fn points(title: &str, axes: (&str, &str), series: &[(String, Vec<(f64, f64)>)]) -> String {
    let side = AXIS + 2.0 * BESIDE;
    let all: Vec<(f64, f64)> = series.iter().flat_map(|(_, points)| points).copied().collect();
    let frame = Frame::around(&all, 0.0, BESIDE);
    let mut svg = begin(side + LEGEND, side, title) + &frame.axes(axes);
    for (number, ((name, points), colour)) in series.iter().zip(COLOURS.iter().cycle()).enumerate() {
        svg += &frame.circles(points, 4.0, colour);
        let top = BESIDE + 20.0 * number as f64;
        svg += &format!("<text x=\"{side}\" y=\"{top}\" fill=\"{colour}\">{}</text>\n", escape(name));
    }
    svg + "</svg>\n"
}

/// Panels of points, two in a row, each with axes of its own.
pub(super) fn panels(title: &str, axes: (&str, &str), panels: &[(String, Vec<(f64, f64)>)]) -> String {
    let step = AXIS + 2.0 * BESIDE;
    let mut svg = begin(2.0 * step, panels.len().div_ceil(2) as f64 * step + BESIDE / 2.0, title);
    for (number, ((name, points), colour)) in panels.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let (left, top) = ((number % 2) as f64 * step, (number / 2) as f64 * step + BESIDE * 1.5);
        let frame = Frame::around(points, left, top);
        svg += &format!("<text x=\"{}\" y=\"{}\">{}</text>\n", left + BESIDE, top - 32.0, escape(name));
        svg += &frame.axes(axes);
        svg += &frame.circles(points, 1.5, colour);
    }
    svg + "</svg>\n"
}

fn begin(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"20\" font-size=\"15\">{}</text>\n",
        escape(title)
    )
}

/// Where points lie between two axes.
struct Frame {
    left: f64,
    top: f64,
    most: (f64, f64),
}

impl Frame {
    /// As large as these points need it, with room for labels to the left.
    fn around(points: &[(f64, f64)], left: f64, top: f64) -> Frame {
        let most = points.iter().fold((1e-9_f64, 1e-9_f64), |(x, y), point| (x.max(point.0), y.max(point.1)));
        Frame { left: left + BESIDE, top, most }
    }

    fn x(&self, value: f64) -> f64 {
        self.left + value / self.most.0 * AXIS
    }

    fn y(&self, value: f64) -> f64 {
        self.top + AXIS - value / self.most.1 * AXIS
    }

    fn circles(&self, points: &[(f64, f64)], radius: f64, colour: &str) -> String {
        let circle = |(x, y): &(f64, f64)| {
            let (x, y) = (self.x(*x), self.y(*y));
            format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"/>\n")
        };
        points.iter().map(circle).collect()
    }

    fn axes(&self, (across, up): (&str, &str)) -> String {
        let (left, right, bottom) = (self.left, self.left + AXIS, self.top + AXIS);
        let mut svg = format!(
            "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>\n<text x=\"{}\" y=\"{}\">{}</text>\n",
            bottom + BESIDE - 8.0,
            escape(across),
            left - BESIDE + 10.0,
            self.top - 14.0,
            escape(up)
        );
        for tick in 0..=TICKS {
            let part = f64::from(tick) / f64::from(TICKS);
            let value = (self.most.0 * part, self.most.1 * part);
            let (at_x, at_y) = (self.x(value.0), self.y(value.1));
            svg += &format!(
                "<line x1=\"{left}\" x2=\"{right}\" y1=\"{at_y:.1}\" y2=\"{at_y:.1}\" stroke=\"#ddd\"/>\n\
                 <text x=\"{}\" y=\"{at_y:.1}\" text-anchor=\"end\" fill=\"#666\">{}</text>\n\
                 <text x=\"{at_x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{}</text>\n",
                left - 6.0,
                crate::text::short(value.1),
                bottom + 18.0,
                crate::text::short(value.0)
            );
        }
        svg
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{bars, panels, points};

    #[test]
    fn panels_have_axes_of_their_own() {
        let one = |most| ("p".to_owned(), vec![(0.0, 0.0), (most, most)]);
        let svg = panels("t", ("x", "y"), &[one(1.0), one(100.0), one(7.0)]);
        // The greatest of each is in the corner of its own panel.
        for place in ["cx=\"460.0\" cy=\"90.0\"", "cx=\"980.0\" cy=\"90.0\"", "cx=\"460.0\" cy=\"610.0\""] {
            assert!(svg.contains(place), "{place}: {svg}");
        }
    }

    #[test]
    fn points_lie_between_nothing_and_the_most() {
        let series = [("a < b".to_owned(), vec![(0.0, 5.0), (32.0, 10.0)]), ("c".to_owned(), vec![(16.0, 0.0)])];
        let svg = points("t", ("x", "y"), &series);
        for place in ["cx=\"60.0\" cy=\"260.0\"", "cx=\"460.0\" cy=\"60.0\"", "cx=\"260.0\" cy=\"460.0\""] {
            assert!(svg.contains(place), "{place}: {svg}");
        }
        assert!(svg.contains("a &lt; b"));
        assert!(points("t", ("x", "y"), &[("none".to_owned(), vec![])]).ends_with("</svg>\n"));
    }

    #[test]
    fn bars_lie_on_their_side_and_names_are_escaped() {
        let svg = bars("a & b", &[("slow <x>".to_owned(), 0.5), ("fast".to_owned(), 4.0)]);
        assert!(svg.contains("a &amp; b") && svg.contains("slow &lt;x&gt;"));
        assert!(svg.contains("width=\"60.0\"") && svg.contains("width=\"120.0\""), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
