//! Text tables: the first column to the left, the others to the right.

/// Rows of cells; the first is the head.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with a head and no rows.
    pub fn new(head: &[&str]) -> Table {
        Table {
            rows: vec![head.iter().map(|h| h.to_string()).collect()],
        }
    }

    /// Adds a row. It may be shorter or longer than the head.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints the table. Widths are counted in characters, not bytes.
    pub fn print(&self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(c));
            cells.map(|t| t.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate();
            let line: Vec<String> = cells
                .map(|(c, (t, w))| match c {
                    0 => format!("{t:<w$}"),
                    _ => format!("{t:>w$}"),
                })
                .collect();
            println!("{}", line.join("  ").trim_end());
        }
    }
}

/// A number with so many digits after the point, or a dash.
pub fn number(v: Option<f64>, digits: usize) -> String {
    v.map_or("-".into(), |v| format!("{v:.digits$}"))
}
