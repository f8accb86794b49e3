//! The `deltafan` command line.

fn main() {
    println!("deltafan");
}
