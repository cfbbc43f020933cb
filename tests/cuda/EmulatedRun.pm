package EmulatedRun;
# Runs of the program on emulated GPUs, for the scripts beside this one.
use strict;
use warnings;
use Exporter qw(import);
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of write_file);
our @EXPORT_OK = qw(use_emulator text_to_train_on small_llama training run steps_in compare_steps);

# The environment of a program that finds so many emulated GPUs.
sub use_emulator {
  my ($folder, $kernels, $devices) = @_;
  $ENV{LD_LIBRARY_PATH} = join ':', $folder, grep { defined && length } $ENV{LD_LIBRARY_PATH};
  $ENV{TESSERA_EMULATOR_KERNELS} = $kernels;
  $ENV{TESSERA_EMULATOR_DEVICES} = $devices;
  $ENV{TESSERA_KERNEL_CACHE} = tempdir(CLEANUP => 1);  # what the emulated NVRTC compiles depends on the emulator
}

sub text_to_train_on {
  my ($path) = @_;
  write_file($path, join ' ', map { "the number " . $_ * $_ . " is the square of $_;" } 1 .. 400);
}

# A config's sections of a small Llama, and of the text that it is trained on.
sub small_llama {
  my ($text) = @_;
  return <<"TOML";
[model]
family = "llama"
dim = 16
layers = 2
heads = 2
kv_heads = 2
ffn_dim = 24
[data]
text = ["$text"]
tokenizer = "bytes"
seq_len = 12
validation = 0
TOML
}

# The sections of how it is trained, followed by the mesh and its styles.
sub training {
  my ($precision, $layout) = @_;
  return <<"TOML";
[train]
steps = 3
batch = 2
clip_grad_norm = 1.0
precision = "$precision"
[optimizer]
name = "adamw"
lr = 1e-2
$layout
TOML
}

# The last command, with what draws the emulator's behaviour: what to run again where the script fails.
my $last_run = '';
END {
  if ($? != 0 && $? != 77 && $last_run ne '') {
    $File::Temp::KEEP_ALL = 1;  # what the command reads
    print STDERR "the last run: $last_run\n";
  }
}

# Runs a command; its status, and what it prints.
sub run {
  my ($log, @command) = @_;
  my @drawn_by = map { defined $ENV{$_} ? "$_='$ENV{$_}'" : () } sort grep { /^TESSERA_EMULATOR_|^LD_LIBRARY_PATH$/ } keys %ENV;
  $last_run = join ' ', @drawn_by, map { "'" . s/'/'\\''/gr . "'" } @command;
  my $pid = fork // die "fork: $!\n";
  if ($pid == 0) {
    open STDIN, '<', '/dev/null';
    open STDOUT, '>', $log;
    open STDERR, '>&', \*STDOUT;
    exec @command or die "$command[0]: $!\n";
  }
  waitpid $pid, 0;
  return ($?, text_of($log));
}

# Of each step in a metrics file: loss, norm.
sub steps_in {
  my ($metrics, $count) = @_;
  my @steps = map { [/"loss":\s*([^,}]+)/, /"grad_norm":\s*([^,}]+)/] } grep { /"loss"/ } split /\n/, text_of($metrics);
  die "$metrics: there are " . @steps . " steps (expected $count)\n" unless @steps == $count;
  return @steps;
}

# Dies where steps differ by more than the tolerance times 1 + the value.
sub compare_steps {
  my ($name, $wanted, $found, $tolerance) = @_;
  for my $step (0 .. $#$wanted) {
    for my $what (0, 1) {
      my ($w, $f) = ($wanted->[$step][$what], $found->[$step][$what]);
      die "$name: step $step, ", ('loss', 'norm')[$what], ": $f on the GPU, $w on the CPU\n"
        unless abs($f - $w) <= $tolerance * (1 + abs $w);
    }
  }
}

1;
