# prediff.h: `make help` lists the targets. Needs a C compiler, make and sh; nothing is downloaded.
.POSIX:
.SUFFIXES:

CC      = cc
CFLAGS  = -O2
LDLIBS  = -lm
PREFIX  = /usr/local
DESTDIR =
PYTHON  = build/parity/venv/bin/python

MODEL   = examples/models/story-q8_0.gguf
VERSION = 0.1.0
PROMPT  = Once upon a time, there was a little
EXAMPLES = build/hello build/infill build/stream build/from_memory build/fixed_memory build/own_loop build/train

all: build/prediff build/prediff-convert

# another compiler or other flags: build again
build/settings: FORCE
	@mkdir -p build
	@echo '$(CC) $(CFLAGS) $(LDFLAGS) $(LDLIBS)' > build/settings.tmp
	@if cmp -s build/settings.tmp $@; then rm build/settings.tmp; else mv build/settings.tmp $@; fi

# -fopenmp where the compiler has it; everything works without
build/openmp: build/settings
	@printf 'int main(void) { return 0; }\n' > build/openmp.c
	@if $(CC) -fopenmp build/openmp.c -o build/openmp.out 2>/dev/null; then echo -fopenmp; fi > build/openmp.tmp
	@mv build/openmp.tmp $@

build/prediff: tools/prediff.c tools/train.c tools/tokenizer.c prediff.h build/openmp
	$(CC) $(CFLAGS) `cat build/openmp` -I. tools/prediff.c $(LDFLAGS) $(LDLIBS) -o $@

build/prediff-convert: tools/prediff-convert.c prediff.h build/settings
	$(CC) $(CFLAGS) -I. tools/prediff-convert.c $(LDFLAGS) $(LDLIBS) -o $@

# a story out of masks; --delay only so that a small model can be watched
run: build/prediff
	./build/prediff generate -m $(MODEL) -p "$(PROMPT)" -n 96 --steps 96 --temp 0.4 -s 2 --no-repeat 4 --echo --visual --delay 40 -t 1

# on a busy machine a thread that spins keeps the other from working: let them sleep
TEST = OMP_WAIT_POLICY=passive sh

test: all
	$(TEST) tests/run.sh

test-long: all
	$(TEST) tests/run_long.sh

fuzz:
	sh tests/fuzz/run.sh

parity: all
	$(TEST) tests/parity/run.sh

# builds llama.cpp's Python package first: ten minutes and more
parity-llama: all
	sh tests/parity/llama.sh

build/bench: benchmarks/bench.c prediff.h build/openmp
	$(CC) $(CFLAGS) `cat build/openmp` -I. benchmarks/bench.c $(LDFLAGS) $(LDLIBS) -o $@

build/bench-train: benchmarks/train.c prediff.h build/openmp
	$(CC) $(CFLAGS) `cat build/openmp` -I. benchmarks/train.c $(LDFLAGS) $(LDLIBS) -o $@

bench-train: build/bench-train
	OMP_WAIT_POLICY=passive ./build/bench-train gpt2-124m
	OMP_WAIT_POLICY=passive ./build/bench-train story-3m

# beside PyTorch, in turn; in the environment that make parity makes, or any with torch and transformers
bench-train-torch: build/bench-train
	$(PYTHON) benchmarks/train_torch.py story-3m
	$(PYTHON) benchmarks/train_torch.py gpt2-124m

# what docs/results.md shows; all go on where they were when they are started again
story: all
	OMP_WAIT_POLICY=passive sh benchmarks/story.sh

quality: all
	sh benchmarks/quality.sh

smollm2: all
	OMP_WAIT_POLICY=passive sh benchmarks/smollm2.sh

science: all
	sh benchmarks/science.sh

bench: build/bench
	./build/bench $(MODEL)

examples: $(EXAMPLES)
	@for e in $(EXAMPLES); do echo "== $$e"; ./$$e || exit 1; done

build/hello: examples/hello.c prediff.h build/openmp
	$(CC) $(CFLAGS) `cat build/openmp` -I. examples/hello.c $(LDFLAGS) $(LDLIBS) -o $@
build/infill: examples/infill.c prediff.h build/openmp
	$(CC) $(CFLAGS) `cat build/openmp` -I. examples/infill.c $(LDFLAGS) $(LDLIBS) -o $@
build/stream: examples/stream.c prediff.h build/openmp
	$(CC) $(CFLAGS) `cat build/openmp` -I. examples/stream.c $(LDFLAGS) $(LDLIBS) -o $@
build/own_loop: examples/own_loop.c prediff.h build/openmp
	$(CC) $(CFLAGS) `cat build/openmp` -I. examples/own_loop.c $(LDFLAGS) $(LDLIBS) -o $@
build/fixed_memory: examples/fixed_memory.c prediff.h build/openmp
	$(CC) $(CFLAGS) `cat build/openmp` -I. examples/fixed_memory.c $(LDFLAGS) $(LDLIBS) -o $@
build/train: examples/train.c prediff.h build/openmp
	$(CC) $(CFLAGS) `cat build/openmp` -I. examples/train.c $(LDFLAGS) $(LDLIBS) -o $@
build/from_memory: examples/from_memory.c prediff.h build/openmp build/model_array.h
	$(CC) $(CFLAGS) `cat build/openmp` -I. -DMODEL_ARRAY='"build/model_array.h"' examples/from_memory.c $(LDFLAGS) $(LDLIBS) -o $@

# the model as a C array
build/model_array.h: $(MODEL)
	@mkdir -p build
	{ echo 'static const unsigned char model_array[] = {'; od -An -v -tu1 $(MODEL) | tr -s ' ' , | sed 's/^,//; s/$$/,/'; echo '};'; } > $@.tmp
	@mv $@.tmp $@

install: all
	printf 'prefix=%s\n\nName: prediff\nDescription: masked-diffusion text generation in one C header\nVersion: %s\nCflags: -I$${prefix}/include\nLibs: -lm\n' '$(PREFIX)' '$(VERSION)' > build/prediff.pc
	mkdir -p $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig
	cp prediff.h $(DESTDIR)$(PREFIX)/include/prediff.h
	cp build/prediff build/prediff-convert $(DESTDIR)$(PREFIX)/bin
	cp build/prediff.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/prediff.pc
	chmod 644 $(DESTDIR)$(PREFIX)/include/prediff.h $(DESTDIR)$(PREFIX)/lib/pkgconfig/prediff.pc
	chmod 755 $(DESTDIR)$(PREFIX)/bin/prediff $(DESTDIR)$(PREFIX)/bin/prediff-convert

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/include/prediff.h $(DESTDIR)$(PREFIX)/bin/prediff $(DESTDIR)$(PREFIX)/bin/prediff-convert $(DESTDIR)$(PREFIX)/lib/pkgconfig/prediff.pc

# keeps what `make parity` downloaded
clean:
	@for f in build/*; do [ "$$f" = build/parity ] || rm -rf "$$f"; done

help:
	@echo 'make            build/prediff, the command line, and build/prediff-convert, weights in and out'
	@echo 'make run        writes a story with the bundled model, the text appearing out of masks'
	@echo 'make test       builds and runs the tests (under 3 minutes)'
	@echo 'make test-long  the sweeps in full'
	@echo 'make fuzz       fuzz targets'
	@echo 'make parity     compares with other software (makes its own Python environment)'
	@echo 'make parity-llama  compares converted models with llama.cpp (builds its Python package: ten minutes)'
	@echo 'make bench      measures speed; make bench-train a training step, make bench-train-torch PyTorch in turn with it'
	@echo 'make story      trains the bundled model (70 minutes); make quality judges it (twenty minutes)'
	@echo 'make smollm2    adapts SmolLM2-135M (three quarters of an hour); make science compares the objectives (half an hour)'
	@echo 'make examples   builds and runs the examples'
	@echo 'make install    header, tool and prediff.pc to DESTDIR and PREFIX (now $(PREFIX)); make uninstall removes them'
	@echo 'make clean      removes build/, but not what make parity downloaded'
	@echo 'Variables: CC CFLAGS LDFLAGS LDLIBS PREFIX DESTDIR MODEL PROMPT PYTHON'

FORCE:

.PHONY: FORCE all run test test-long fuzz parity parity-llama story quality smollm2 science bench bench-train bench-train-torch examples install uninstall clean help
