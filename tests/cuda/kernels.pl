#!/usr/bin/env perl
# Compares what nvcc makes of kernels with two tables. plugins/cuda/kernels.table: registers, shared memory and stack
# on each architecture. It fails on a spilled register, on registers that change how many warps a multiprocessor has at
# once, on more stack, on other shared memory, and on a kernel without a line.
# plugins/cuda/passes.table, by nvdisasm: instructions for each element, bytes of each load and store, and bytes in flight
# (MachineCode.pm). It fails where one of them is worse by more than a tenth.
#   kernels.pl names TABLE LIBRARY                        the table has the kernels of the emulator's library; needs no nvcc
#   kernels.pl compare TABLE PASSES NVCC NVDISASM ARCHITECTURE -- OPTION... -- FILE.cu   a source on one architecture
#   kernels.pl write TABLE PASSES NVCC NVDISASM JOBS -- OPTION... -- FILE.cu...   writes both anew, also with spills (and then fails)
#   kernels.pl add TABLE PASSES NVCC NVDISASM JOBS -- OPTION... -- FILE.cu...     the same for these sources; other lines stay
#   kernels.pl show NVDISASM CUBIN [KERNEL]               prints the figures of a cubin's kernels, of one with its instructions
# NVDISASM is `-` where there is none: then the second table is neither compared nor written.
use strict;
use warnings;
use File::Basename qw(basename);
use File::Temp qw(tempdir);
use POSIX ();
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of write_file);
use lib $FindBin::RealBin;
use MachineCode qw(judged_of pass_line read_passes summary_of);

my @architectures = qw(80 90a 100);
my @measures = qw(registers shared stack);

# Warps that a quarter of a multiprocessor has at once with so many registers in each thread: 16,384 registers, given to a
# warp in units of 256, and at most 16 warps.
sub warps {
  my ($registers) = @_;
  my $units = int(($registers + 7) / 8) || 1;
  my $warps = int(64 / $units);
  return $warps > 16 ? 16 : $warps;
}

# ({kernel}{architecture}: {registers, shared, stack}; the release of nvcc that wrote it)
sub read_table {
  my ($file) = @_;
  my (%table, $release);
  for (split /\n/, text_of($file)) {
    $release = $1 if /^# nvcc ([\d.]+)/;
    next if /^#/ || !/\S/;
    my ($name, @numbers) = split;
    die "$file: '$_' is not a line of the table (expected a name and " . @architectures * @measures . " numbers)\n"
      unless @numbers == @architectures * @measures && !grep { !/^\d+$/ } @numbers;
    die "$file: $name has two lines\n" if $table{$name};
    for my $architecture (@architectures) {
      my %one;
      @one{@measures} = splice @numbers, 0, scalar @measures;
      $table{$name}{$architecture} = \%one;
    }
  }
  die "$file: it does not say which nvcc has written it (expected '# nvcc RELEASE')\n" unless $release;
  return (\%table, $release);
}

sub table_text {
  my ($table, $release) = @_;
  my $text = "# nvcc $release: registers, bytes of shared memory and bytes of stack of each kernel on sm_"
    . join(', sm_', @architectures) . ".\n# Written by tests/cuda/kernels.pl (docs/cuda-plugin.md); no register is spilled.\n";
  for my $name (sort keys %$table) {
    $text .= sprintf '%-28s', $name;
    for my $architecture (@architectures) {
      $text .= sprintf '  %4d %5d %4d', @{ $table->{$name}{$architecture} }{@measures};
    }
    $text .= "\n";
  }
  return $text;
}

# What ptxas -v says of the kernels of one source: {kernel}: {registers, shared, stack, spills}
sub read_log {
  my ($text, $what) = @_;
  my (%found, $kernel);
  for (split /\n/, $text) {
    if (/Compiling entry function '(\w+)'/) {
      $kernel = $1;
      $found{$kernel} = { map { $_ => 0 } @measures, 'spills' };
    } elsif (/Function properties for (\w+)/) {
      undef $kernel unless defined $kernel && $1 eq $kernel;  # a function that kernels call
    } elsif (defined $kernel && /(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads/) {
      @{ $found{$kernel} }{qw(stack spills)} = ($1, $2 + $3);
    } elsif (defined $kernel && /Used (\d+) registers/) {
      $found{$kernel}{registers} = $1;
      $found{$kernel}{shared} = $1 if /(\d+) bytes smem/;
      undef $kernel;
    }
  }
  my @without = grep { !$found{$_}{registers} } sort keys %found;
  die "$what: ptxas says no registers of @without:\n$text\n" if @without;
  die "$what: ptxas names no kernel:\n$text\n" unless %found;
  return \%found;
}

# Compiles a source into `out`.cubin and, with nvdisasm, writes the lines of its kernels into `out`.passes.
sub compile_one {
  my ($nvcc, $nvdisasm, $options, $architecture, $file, $out) = @_;
  system($nvcc, @$options, '-Xptxas', '-v', '-cubin', "-arch=sm_$architecture", '-o', "$out.cubin", $file) == 0 or die "nvcc fails\n";
  return if $nvdisasm eq '-';
  my $judged = judged_of($nvdisasm, "$out.cubin");
  write_file("$out.passes", join '', map { "$_ " . pass_line($judged->{$_}) . "\n" } grep { @{ $judged->{$_}{passes} } } sort keys %$judged);
}

# {kernel}{architecture}: {...}; with nvdisasm also {passes}, the line of the second table
sub compile {
  my ($nvcc, $nvdisasm, $jobs, $options, $files, @on) = @_;
  my $folder = tempdir(CLEANUP => 1);
  my @todo = map { my $file = $_; map { [$file, $_] } @on } @$files;
  my %running;
  my $wait = sub {
    my $pid = wait;
    my $name = delete $running{$pid} // die "a process ended that was not started here\n";
    die "$name is not compiled and judged:\n", text_of("$folder/$name") if $? != 0;
  };
  for (@todo) {
    my ($file, $architecture) = @$_;
    $wait->() while keys %running >= $jobs;
    my $name = basename($file, '.cu') . ".$architecture";
    my $pid = fork // die "fork: $!\n";
    if ($pid == 0) {
      open STDERR, '>', "$folder/$name" or die;
      open STDOUT, '>&', \*STDERR;
      eval { compile_one($nvcc, $nvdisasm, $options, $architecture, $file, "$folder/$name"); 1 } or print STDERR $@;
      POSIX::_exit($@ ? 1 : 0);  # the folder is the parent's to remove
    }
    $running{$pid} = $name;
  }
  $wait->() while %running;
  my %all;
  for (@todo) {
    my ($file, $architecture) = @$_;
    my $name = basename($file, '.cu') . ".$architecture";
    my $found = read_log(text_of("$folder/$name"), $name);
    for ($nvdisasm eq '-' ? () : split /\n/, text_of("$folder/$name.passes")) {
      my ($kernel, $line) = split ' ', $_, 2;
      $found->{$kernel}{passes} = $line;
    }
    $all{$_}{$architecture} = $found->{$_} for keys %$found;
  }
  return \%all;
}

sub passes_text {
  my ($lines, $release) = @_;
  return "# nvcc $release: what each kernel does for its elements, on each architecture. Written by tests/cuda/kernels.pl\n"
    . "# (docs/cuda-plugin.md): bytes of an element; instructions of a thread beside its passes; then of each pass elements,\n"
    . "# instructions, loads and their bytes, stores and theirs, bytes in flight, accesses of shared memory, barriers.\n"
    . join '', map { my $name = $_; map { "$name $_ $lines->{$name}{$_}\n" } sort keys %{ $lines->{$name} } } sort keys %$lines;
}

# What is worse than the table by more than a tenth.
sub worse {
  my ($name, $architecture, $old, $new) = @_;
  my $at = "$name, sm_$architecture";
  return "$at: no loop with loads or stores is found any more" if !$new;
  my ($was, $is) = (summary_of($old), summary_of($new));
  my @problems;
  my %words = (instructions => 'instructions for each element', load => 'bytes for each load', store => 'bytes for each store',
    flight => 'bytes in flight in each thread');
  for my $measure (qw(instructions load store flight)) {
    my ($w, $i) = ($was->{$measure}, $is->{$measure});
    next if !$w || ($measure eq 'instructions' ? $i <= 1.1 * $w + 0.5 : $i >= $w / 1.1);
    push @problems, sprintf '%s: %.4g %s instead of %.4g', $at, $i, $words{$measure}, $w;
  }
  return @problems;
}

sub end {
  my ($table, @problems) = @_;
  return unless @problems;
  die join("\n", @problems), "\n",
    "Look at each line above. Where the change is right, write the tables anew and commit it with the reason:\n",
    "  ./dev cmake --build build/release --target write_kernels_table\n";
}

# Names that only one of both has.
sub differing_names {
  my ($table, $found) = @_;
  return ((map { "$_: it has no line in the table" } grep { !$table->{$_} } sort keys %$found),
    (map { "$_: the table has it, and there is no such kernel" } grep { !$found->{$_} } sort keys %$table));
}

my ($task, $file, @rest) = @ARGV;
if (($task // '') eq 'names' && @rest == 1) {
  my ($table) = read_table($file);
  my %found = map { $_ => 1 } grep { !/^emulated_/ } map { /^\S+ T (\w+)$/ ? $1 : () } `nm -D --defined-only '$rest[0]'`;
  die "nm lists no kernel of $rest[0]\n" unless %found;
  end($file, differing_names($table, \%found));
  print scalar(keys %found), " kernels have a line\n";
} elsif (($task // '') eq 'show' && @rest >= 1) {
  my $judged = judged_of($file, $rest[0]);
  for my $name (grep { !$rest[1] || $_ eq $rest[1] } sort keys %$judged) {
    my $j = $judged->{$name};
    print "$name ", pass_line($j), "\n";
    next unless $rest[1];
    for my $pass (@{ $j->{passes} }) {
      print "pass\n", map { '  ' . ($_->{predicate} ? "\@$_->{predicate} " : '') . "$_->{op}$_->{mods} $_->{operands}\n" } @{ $pass->{path} };
    }
  }
} elsif (($task // '') =~ /^(?:compare|write|add)$/ && @rest > 6 && $rest[4] eq '--') {
  my ($passes, $nvcc, $nvdisasm, $number, undef, @more) = @rest;
  my @on = $task eq 'compare' ? $number : @architectures;
  die "$number: it is not one of the architectures @architectures\n" if grep { my $one = $_; !grep { $_ eq $one } @architectures } @on;
  my @options;
  push @options, shift @more while @more && $more[0] ne '--';
  shift @more;
  my ($release) = `'$nvcc' --version` =~ /release ([\d.]+)/;
  die "$nvcc: it does not say its release\n" unless $release;
  my $found = compile($nvcc, $nvdisasm, $task eq 'compare' ? 1 : $number, \@options, \@more, @on);
  my @problems;
  for my $name (sort keys %$found) {
    for my $architecture (@on) {
      my $f = $found->{$name}{$architecture} // die "$name: it is not compiled for sm_$architecture\n";
      push @problems, "$name, sm_$architecture: $f->{spills} bytes of registers are spilled; use fewer values at once" if $f->{spills};
    }
  }
  my %lines;
  for my $name (keys %$found) {
    for my $architecture (@on) {
      my $line = $found->{$name}{$architecture}{passes};
      $lines{$name}{$architecture} = $line if defined $line;
    }
  }
  if ($task ne 'compare') {
    if ($nvdisasm ne '-') {
      my $others = $task eq 'add' ? (read_passes($passes))[0] : {};
      delete @{$others}{ keys %$found };
      write_file($passes, passes_text({ %$others, %lines }, $release));
    }
    $found = { %{ (read_table($file))[0] }, %$found } if $task eq 'add';
    write_file($file, table_text($found, $release));
    die join("\n", @problems), "\n" if @problems;
    print "$file: ", scalar(keys %$found), " kernels\n";
    exit 0;
  }
  my ($table, $written_by) = read_table($file);
  push @problems, map { "$_: it has no line in the table" } grep { !$table->{$_} } sort keys %$found;
  my $changed = 0;
  for my $name (grep { $table->{$_} } sort keys %$found) {
    for my $architecture (@on) {
      my ($t, $f) = ($table->{$name}{$architecture}, $found->{$name}{$architecture});
      $changed += grep { $t->{$_} != $f->{$_} } @measures;
      next unless $release eq $written_by;  # another compiler may take others
      my $at = "$name, sm_$architecture";
      push @problems, "$at: $f->{registers} registers instead of $t->{registers}: " . 4 * warps($f->{registers}) . ' warps at once instead of '
        . 4 * warps($t->{registers}) if warps($f->{registers}) != warps($t->{registers});
      push @problems, "$at: $f->{stack} bytes of stack instead of $t->{stack}" if $f->{stack} > $t->{stack};
      push @problems, "$at: $f->{shared} bytes of shared memory instead of $t->{shared}" if $f->{shared} != $t->{shared};
    }
  }
  if ($nvdisasm ne '-') {
    my ($old, $by) = read_passes($passes);
    for my $name (sort keys %$found) {
      for my $architecture (@on) {
        my ($was, $is) = ($old->{$name}{$architecture}, $lines{$name}{$architecture});
        $changed += ($was // '') ne ($is // '');
        push @problems, worse($name, $architecture, $was, $is) if $was && $release eq $by;
      }
    }
  }
  end($file, @problems);
  print "no nvdisasm (./dev setup cuda): instructions are not compared\n" if $nvdisasm eq '-';
  print scalar(keys %$found), " kernels on sm_@on, no spills; $changed numbers differ from the table's",
    $release eq $written_by ? "\n" : " (of nvcc $written_by; this is $release: only spills and names are compared)\n";
} else {
  die "usage: kernels.pl names TABLE LIBRARY, compare TABLE PASSES NVCC NVDISASM ARCHITECTURE -- OPTION... -- FILE.cu, ",
    "write|add TABLE PASSES NVCC NVDISASM JOBS -- OPTION... -- FILE.cu..., or show NVDISASM CUBIN [KERNEL]\n";
}
