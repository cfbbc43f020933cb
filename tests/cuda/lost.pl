#!/usr/bin/env perl
# A GPU of two is lost in the middle of a run: both ranks end with one error that says so, and the same command goes on
# from the last checkpoint, with the bits of a run that lost nothing.
#   lost.pl PROGRAM EMULATOR KERNELS PLUGIN...
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../support";
use EmulatedRun qw(use_emulator text_to_train_on small_llama training run);
use Files qw(text_of write_file);

my ($program, $emulator, $kernels, @plugins) = @ARGV;
die "usage: lost.pl PROGRAM EMULATOR KERNELS PLUGIN...\n" unless @plugins;
my $folder = tempdir(CLEANUP => 1);
use_emulator($emulator, $kernels, 2);
text_to_train_on("$folder/text");
write_file("$folder/run.toml", small_llama("$folder/text") . training('f32', <<'TOML'));
[mesh]
axes = ["shard"]
shape = [2]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
TOML

sub train {
  my ($name, @options) = @_;
  return run("$folder/log", $program, 'train', "$folder/run.toml", (map { ('--plugin', $_) } @plugins), 'train.device=cuda',
    'train.steps=4', 'checkpoint.every=1', "checkpoint.folder=$folder/$name", "log.metrics=$folder/$name.jsonl",
    'log.sample=0', @options);
}

# The last loss of each step, as text.
sub losses {
  my ($name) = @_;
  my %losses;
  for my $line (split /\n/, text_of("$folder/$name.jsonl")) {
    $losses{$1} = $2 if $line =~ /"step":\s*(\d+).*?"loss":\s*([^,}]+)/;
  }
  return join ' ', map { "$_:$losses{$_}" } sort { $a <=> $b } keys %losses;
}

my ($status, $text) = train('whole');
die "a run that loses nothing fails:\n$text" if $status != 0;
my $whole = losses('whole');

for my $launch (20, 250) {
  my $name = "lost-$launch";
  {
    local $ENV{TESSERA_EMULATOR_LOSE} = "1 $launch";
    my $start = time;
    ($status, $text) = train($name);
    my $took = time - $start;
    die "a run that loses a GPU at launch $launch ends with status $status (expected 256):\n$text" unless $status == 256;
    die "the error is not printed once:\n$text" unless 1 == (() = $text =~ /^error: /mg);
    die "the error does not say what to do:\n$text"
      unless $text =~ /^error: .*CUDA_ERROR_UNKNOWN.*cannot use its GPU any more; start the program again/m;
    die "the ranks ended after $took s:\n$text" if $took > 60;
  }
  ($status, $text) = train($name);
  die "the run does not go on:\n$text" if $status != 0;
  my $found = losses($name);
  die "after the loss of a GPU the losses are $found, not $whole\n" unless $found eq $whole;
}
print "losses: $whole\n";
