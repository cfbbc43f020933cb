#!/usr/bin/env perl
# Trains a small Llama for 3 steps on the CPU and on the emulated GPU: the losses and the norms of the gradients agree.
#   train.pl PROGRAM PLUGIN EMULATOR KERNELS
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(write_file);

my ($program, $plugin, $emulator, $kernels) = @ARGV;
die "usage: train.pl PROGRAM PLUGIN EMULATOR KERNELS\n" unless defined $kernels;
my $folder = tempdir(CLEANUP => 1);
$ENV{LD_LIBRARY_PATH} = join ':', $emulator, grep { defined && length } $ENV{LD_LIBRARY_PATH};
$ENV{TESSERA_EMULATOR_KERNELS} = $kernels;

write_file("$folder/text", join ' ', map { "the number " . $_ * $_ . " is the square of $_;" } 1 .. 400);
write_file("$folder/run.toml", <<"TOML");
[model]
family = "llama"
dim = 16
layers = 2
heads = 2
kv_heads = 1
ffn_dim = 24
[data]
text = ["$folder/text"]
tokenizer = "bytes"
seq_len = 12
[train]
steps = 3
batch = 2
clip_grad_norm = 1.0
[optimizer]
name = "adamw"
lr = 1e-2
TOML

# Of each step: loss, norm.
sub steps_on {
  my ($device) = @_;
  my $metrics = "$folder/metrics.jsonl";
  unlink $metrics;
  my @command = ($program, 'train', "$folder/run.toml", '--plugin', $plugin, "train.device=$device",
    "log.metrics=$metrics", "checkpoint.folder=''");
  my $log = "$folder/log";
  if (system("@command >$log 2>&1 </dev/null") != 0) {
    open my $file, '<', $log or die "$log: $!\n";
    die "'@command' fails:\n", <$file>;
  }
  open my $file, '<', $metrics or die "$metrics: $!\n";
  my @steps = map { [/"loss":\s*([^,}]+)/, /"grad_norm":\s*([^,}]+)/] } grep { /"loss"/ } <$file>;
  die "$metrics: there are " . @steps . " steps (expected 3)\n" unless @steps == 3;
  return @steps;
}

my @wanted = steps_on('cpu');
my $bits;
for my $seed (0, 5) {
  $ENV{TESSERA_EMULATOR_SEED} = $seed;
  my @found = steps_on('cuda');
  for my $step (0 .. 2) {
    for my $what (0, 1) {
      my ($w, $f) = ($wanted[$step][$what], $found[$step][$what]);
      die "step $step, ", ('loss', 'norm')[$what], ": $f on the GPU, $w on the CPU\n" unless abs($f - $w) <= 1e-5 * (1 + abs $w);
    }
  }
  my $text = join ' ', map { @$_ } @found;
  $bits //= $text;
  die "another order of streams, blocks and threads gives other bits: $text, not $bits\n" unless $text eq $bits;
}
print "3 steps agree: $bits\n";
