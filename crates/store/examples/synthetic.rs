//! Writes the index of a data set that takes no room: samples of about 1 KB in files of 4,096 each, which are all hole. `FILE`, how many, and the files'
//! directory.
//!
//! The benchmark of `split` opens it: what an index of 10^8 samples costs shows without 100 GB of them.

use foreload_store::format::Format;
use foreload_store::index::{IndexBuilder, NewObject, NewSample};

const IN_AN_OBJECT: u64 = 4096;
const BYTES: u64 = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(samples), Some(directory)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: synthetic FILE SAMPLES DIRECTORY".into());
    };
    std::fs::create_dir_all(&directory)?;
    let mut builder = IndexBuilder::new(format!("file://{directory}"), Format::Manifest);
    for sample in 0..samples.parse()? {
        if sample % IN_AN_OBJECT == 0 {
            let key = format!("{:08}.bin", sample / IN_AN_OBJECT);
            builder.object(NewObject {
                key: &key,
                size: IN_AN_OBJECT * BYTES,
                ..NewObject::default()
            })?;
            std::fs::File::create(format!("{directory}/{key}"))?.set_len(IN_AN_OBJECT * BYTES)?;
        }
        builder.sample(NewSample {
            object: sample / IN_AN_OBJECT,
            offset: sample % IN_AN_OBJECT * BYTES,
            length: BYTES - sample % 7,
            label: Some((sample % 1000) as i64),
            ..NewSample::default()
        })?;
    }
    std::fs::write(file, builder.finish()?.as_bytes())?;
    Ok(())
}
