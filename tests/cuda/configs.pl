#!/usr/bin/env perl
# Trains configs for 3 steps, made smaller, on the CPU and on emulated GPUs, eager and planned: losses and norms of the
# gradients agree, and another order of streams, blocks and threads gives the same bits.
#   configs.pl PROGRAM EMULATOR KERNELS PLUGIN[,PLUGIN] CONFIG...
use strict;
use warnings;
use File::Basename qw(basename);
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of write_file);

my ($program, $emulator, $kernels, $plugins, @configs) = @ARGV;
die "usage: configs.pl PROGRAM EMULATOR KERNELS PLUGIN[,PLUGIN] CONFIG...\n" unless @configs;
my $folder = tempdir(CLEANUP => 1);
$ENV{LD_LIBRARY_PATH} = join ':', $emulator, grep { defined && length } $ENV{LD_LIBRARY_PATH};
$ENV{TESSERA_EMULATOR_KERNELS} = $kernels;
$ENV{TESSERA_EMULATOR_DEVICES} = 8;
write_file("$folder/text", join ' ', map { "the number " . $_ * $_ . " is the square of $_;" } 1 .. 400);

# The options that make a config small enough.
sub smaller {
  my ($config) = @_;
  my $text = text_of($config);
  my @options = ('model.dim=64', 'model.layers=2', 'train.steps=3', 'train.batch=4', 'optimizer.warmup=1',
    'data.seq_len=12', 'data.validation=0', "data.text=['$folder/text']", 'log.sample=0', "log.metrics=$folder/metrics",
    "checkpoint.folder=''");
  push @options, 'model.ffn_dim=64' if $text =~ /^ffn_dim/m;
  push @options, 'model.vocab=256' if $text =~ /^vocab/m;
  return @options;
}

# Of each step: loss, norm.
sub steps_of {
  my ($config, @options) = @_;
  unlink "$folder/metrics";
  my @command = ($program, 'train', $config, (map { ('--plugin', $_) } split /,/, $plugins), smaller($config), @options);
  my $pid = fork // die "fork: $!\n";
  if ($pid == 0) {
    open STDIN, '<', '/dev/null';
    open STDOUT, '>', "$folder/log";
    open STDERR, '>&', \*STDOUT;
    exec @command;
  }
  waitpid $pid, 0;
  die "'@command' fails:\n", text_of("$folder/log") if $? != 0;
  my @steps = map { [/"loss":\s*([^,}]+)/, /"grad_norm":\s*([^,}]+)/] } grep { /"loss"/ } split /\n/, text_of("$folder/metrics");
  die "$config: there are " . @steps . " steps (expected 3)\n" unless @steps == 3;
  return @steps;
}

for my $config (@configs) {
  my $name = basename($config, '.toml');
  my $tolerance = text_of($config) =~ /^precision = "bf16"/m ? 1e-2 : 1e-5;
  my @planned = ('graph.capture=true', 'graph.executor=planned');
  my @wanted = steps_of($config, 'train.device=cpu');
  for my $how ([], \@planned) {
    my $bits;
    for my $seed (0, 5) {
      $ENV{TESSERA_EMULATOR_SEED} = $seed;
      my @found = steps_of($config, 'train.device=cuda', @$how);
      for my $step (0 .. 2) {
        for my $what (0, 1) {
          my ($w, $f) = ($wanted[$step][$what], $found[$step][$what]);
          die "$name @$how: step $step, ", ('loss', 'norm')[$what], ": $f on the GPU, $w on the CPU\n"
            unless abs($f - $w) <= $tolerance * (1 + abs $w);
        }
      }
      my $text = join ' ', map { @$_ } @found;
      $bits //= $text;
      die "$name @$how: another order of streams, blocks and threads gives other bits: $text, not $bits\n" unless $text eq $bits;
    }
    print "$name @$how: 3 steps agree: $bits\n";
  }
}
