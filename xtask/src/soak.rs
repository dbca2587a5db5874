//! Soon.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {}
pub(crate) fn run(_: &Arguments) -> anyhow::Result<std::process::ExitCode> {
    anyhow::bail!("soon")
}
