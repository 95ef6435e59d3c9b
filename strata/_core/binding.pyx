"""Operations as attributes of groups, which can be called, and bound to arrays for many calls.

``g.all_reduce(x)`` must not cost more than if all_reduce were an ordinary method, and ``g.all_reduce.bind(x)`` must
find an object that knows the group.  So an Operation says of itself what functions say (Py_TPFLAGS_METHOD_DESCRIPTOR):
a call of the attribute goes straight to it, with the group first, and only a mere look at it makes a BoundOperation.
"""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

import types

from strata._core.array cimport Array, look
from strata._core.casting cimport Casts
from strata._core.front cimport Front
from strata._core.group cimport CoreGroup, st_transfer, st_worker_idle
from strata._core.spans cimport BOUND, FAILED, LATER, NOBODY, enter, leave, numbers, on, traced, waiting
from strata._core.stream cimport current
from strata._core.transfer cimport Draft, Transfers

from strata import errors


cdef extern from *:
    """
    /* Objects of a type are called by the vectorcallfunc that each has at `at`. */
    static void st_called_at(PyObject *type, Py_ssize_t at, unsigned long flags)
    {
        PyTypeObject *t = (PyTypeObject *)type;

        t->tp_vectorcall_offset = at;
        t->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | flags;
        PyType_Modified(t);
    }

    /* Where an object has its vectorcallfunc; 0: nowhere. */
    static Py_ssize_t st_call_offset(PyObject *f)
    {
        return Py_TYPE(f)->tp_flags & Py_TPFLAGS_HAVE_VECTORCALL ? Py_TYPE(f)->tp_vectorcall_offset : 0;
    }

    static inline PyObject *st_call_at(PyObject *f, Py_ssize_t at, PyObject *const *args, size_t nargsf,
                                       PyObject *names)
    {
        return (*(vectorcallfunc *)((char *)f + at))(f, args, nargsf, names);
    }

    /* A call with one more argument before the others. */
    static PyObject *st_call_with(PyObject *f, PyObject *first, PyObject *const *args, size_t nargsf, PyObject *names)
    {
        Py_ssize_t n = PyVectorcall_NARGS(nargsf), all = n + (names ? PyTuple_GET_SIZE(names) : 0), i;
        PyObject **a, *before, *result, *space[16];

        if (nargsf & PY_VECTORCALL_ARGUMENTS_OFFSET) { /* the caller lends the place before its arguments */
            a = (PyObject **)args - 1;
            before = a[0];
            a[0] = first;
            result = PyObject_Vectorcall(f, a, (size_t)n + 1, names);
            a[0] = before;
            return result;
        }
        a = all < 16 ? space : (PyObject **)PyMem_Malloc(((size_t)all + 1) * sizeof *a);
        if (!a)
            return PyErr_NoMemory();
        a[0] = first;
        for (i = 0; i < all; i++)
            a[i + 1] = args[i];
        result = PyObject_Vectorcall(f, a, (size_t)n + 1, names);
        if (a != space)
            PyMem_Free(a);
        return result;
    }

    static inline int st_called_plainly(size_t nargsf, PyObject *names)
    {
        return PyVectorcall_NARGS(nargsf) == 0 && !(names && PyTuple_GET_SIZE(names));
    }
    """
    void st_called_at(object type, Py_ssize_t at, unsigned long flags)
    Py_ssize_t st_call_offset(object f)
    object st_call_at(PyObject *f, Py_ssize_t at, PyObject **args, size_t nargsf, PyObject *names)
    object st_call_with(PyObject *f, PyObject *first, PyObject **args, size_t nargsf, PyObject *names)
    bint st_called_plainly(size_t nargsf, PyObject *names)
    unsigned long Py_TPFLAGS_METHOD_DESCRIPTOR


# ---- bound to arrays -----------------------------------------------------------------------


cdef object call_persistent(PyObject *self, PyObject **args, size_t nargsf, PyObject *names):
    if not st_called_plainly(nargsf, names):
        raise TypeError("a bound operation takes no arguments: they were given to bind()")
    return (<Persistent>self).told(False) if on() else (<Persistent>self).run()


@cython.final
cdef class Persistent(Draft):
    """An operation that is bound to its arguments: what ``bind`` of an operation returns.

    ``op()`` runs it on what the arrays hold then, and returns what the operation returns; ``op.start()`` begins it and
    returns a Work; ``op.result`` is what a call returns, ``op.free()`` (or the end of a ``with`` block) lets go of the
    arrays.  The arrays' addresses, shapes and dtypes must stay; all else is as in a call of the operation: the same
    results, errors, order and timeout, on streams and in captures too.
    """

    def __cinit__(self):
        self.call = <void *>call_persistent

    def __init__(self):
        raise TypeError("a Persistent is what bind() of an operation returns, as in g.all_reduce.bind(x)")

    cdef int check(self) except -1:
        """Raises unless the arrays are what they were."""
        if self.over:
            raise errors.InvalidArgument(f"{self.operation}: the bound operation was freed, and cannot be called: bind "
                                         "again", operation=self.operation)
        if self.out is not None and not same(self.out, &self.b, True):
            self.changed(self.out, same(self.out, &self.b, False))
        if self.src is not None and self.src is not self.out and not same(self.src, &self.a, False):
            self.changed(self.src, False)
        return 0

    cdef int changed(self, object array, bint locked) except -1:
        if locked:
            raise ValueError(f"{self.operation}: the output array is read-only")
        raise errors.InvalidArgument(f"{self.operation}: the address, shape or dtype of an array is not what it was "
                                     "when the operation was bound: bind again", operation=self.operation)

    cdef object run(self):
        cdef Front group
        cdef st_transfer t
        self.check()
        if (not self.ready or self.busy or self.group.context.recorders is not None or current() is not None
                or self.group.g.ctx.vmm):
            return self.run_again(False)
        self.group.check_here()
        if self.message:
            t = self.transfer
            array = self.out if t.receive else self.src
            (<Transfers>self.group).carry(&t, array, array, self.ns, False, None)
            return self.result
        group = <Front>self.group
        if not st_worker_idle(&group.collectives) or (self.lanes is not None and self.lanes is not group._lanes):
            return self.run_again(False)
        self.busy = True
        try:
            group.run(&self.request, self.src, self.out, self.scratch, self.handle)
        finally:
            self.busy = False
        return self.result

    cdef object told(self, bint later):
        """A call, or (``later``) a start, of which a trace tells."""
        cdef CoreGroup group = self.group
        cdef uint64_t began = 0, before = 0, number = 0
        cdef uint32_t flags = BOUND | FAILED, queued = 0, peer = NOBODY
        self.check()
        before, queued = group.g.number, waiting(group)
        began = enter(group.g.ctx)
        try:
            result = self.run_again(True) if later else self.run()
            later = later or current() is not None
            flags = BOUND | (LATER if later else 0)
        finally:
            if began:
                if self.message:
                    peer = group.ranks[self.transfer.peer]
                else:
                    number = numbers(group, before, queued, later)
                leave(group.context, began, self.operation, self.a.nbytes or self.b.nbytes, flags, peer, group,
                      number)
        return result

    cdef object run_again(self, bint async_op):
        """A call that looks at all that may have changed."""
        cdef bint receive
        if not self.message:
            return (<Front>self.group).again(self, async_op)
        if self.transfer.cast:
            return (<Casts>self.group).cast_again(self, async_op)
        receive = self.transfer.receive
        return (<Transfers>self.group).start(receive, self.out if receive else self.src, self.transfer.peer,
                                             self.transfer.tag, self.timeout, async_op)

    def start(self):
        """Begins the operation; returns a Work, as ``async_op=True`` does.  Its wait() returns what a call returns."""
        self.check()
        return self.told(True) if on() else self.run_again(True)

    def free(self):
        """Lets go of the arrays; calls are errors from now on.  What is in progress goes on.  May be repeated."""
        self.over = True
        self.src = self.out = self.result = self.by = self.handle = self.scratch = self.lanes = None

    @property
    def result(self):
        """What a call returns: the output array, or None."""
        return self.result

    @property
    def group(self):
        """The group whose operation it is."""
        return self.group

    @property
    def operation(self):
        """Name of the operation."""
        return self.operation

    def __call__(self):
        return self.told(False) if on() else self.run()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.free()

    def __repr__(self):
        a = self.src if self.src is not None else self.out
        of = "freed" if self.over else "" if a is None else f"{a.dtype} {a.shape}"
        return f"<strata.Persistent {self.operation}{' ' + of if of else ''} of group {self.group.name}>"


cdef bint same(object array, const Array *wanted, bint written) except -1:
    """Whether an array is as it was."""
    cdef Array a
    look(array, &a)
    return (a.data == wanted.data and a.nbytes == wanted.nbytes and a.dtype == wanted.dtype
            and a.contiguous == wanted.contiguous and (a.writeable or not written))


# ---- operations ------------------------------------------------------------------------------


cdef object call_operation(PyObject *self, PyObject **args, size_t nargsf, PyObject *names):
    if on():
        return traced((<Operation>self).function, (<Operation>self).name, args, nargsf, names)
    return st_call_at(<PyObject *>(<Operation>self).function, (<Operation>self).at, args, nargsf, names)


cdef object call_bound(PyObject *self, PyObject **args, size_t nargsf, PyObject *names):
    return st_call_with(<PyObject *>(<BoundOperation>self).operation, <PyObject *>(<BoundOperation>self).group, args,
                        nargsf, names)


@cython.final
cdef class Operation:
    """An operation of groups: ``g.all_reduce(x)`` calls it, ``g.all_reduce.bind(x)`` binds it to its arguments."""

    def __cinit__(self, function=None):
        self.call = <void *>call_operation
        self.function, self.name = function, getattr(function, "__name__", None)
        self.at = 0 if function is None else st_call_offset(function)
        if function is not None and not self.at:
            raise TypeError(f"{function!r}: a function is expected")

    def __set_name__(self, owner, name):
        self.owner, self.name = owner, name

    def __get__(self, group, owner):
        if group is None:
            return self
        return bound(self, group)

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    @property
    def __wrapped__(self):
        return self.function

    @property
    def __name__(self):
        return self.name

    @property
    def __qualname__(self):
        return self.name if self.owner is None else f"{self.owner.__qualname__}.{self.name}"

    @property
    def __doc__(self):
        return self.function.__doc__

    @property
    def __module__(self):
        return self.function.__module__ if self.owner is None else self.owner.__module__

    def __reduce__(self):
        return getattr, (self.owner, self.name)

    def __repr__(self):
        return f"<operation {self.__qualname__}>"


cdef BoundOperation bound(Operation operation, object group):
    cdef BoundOperation made = BoundOperation.__new__(BoundOperation)
    made.operation, made.group = operation, group
    return made


@cython.final
cdef class BoundOperation:
    """An operation of one group, as ``g.all_reduce`` is: can be called, and bound to its arguments."""

    def __cinit__(self):
        self.call = <void *>call_bound

    def __init__(self):
        raise TypeError("an operation of a group is an attribute of the group, as in g.all_reduce")

    def bind(self, *args, **kwargs):
        """Binds the operation to arguments, for many calls: returns a Persistent, ``op``, and ``op()`` is a call.

        Takes what the operation takes, but ``async_op``.  All members of the group bind, in one order with its other
        operations, and get CollectiveMismatch here if they do not bind the same; send and recv are bound without the
        peer.  Arguments are checked, an output is allocated, the plan is made and peers' memory mapped now, and not
        in the calls.
        """
        cdef Persistent op = Persistent.__new__(Persistent)
        cdef CoreGroup group = self.group
        cdef uint64_t began = 0, before = group.g.number
        if "async_op" in kwargs:
            raise TypeError("bind() takes no async_op: start() of what it returns begins an operation without waiting")
        group.uncapturable("bind()")
        op.operation = self.operation.name
        began = enter(group.g.ctx)
        try:
            self.operation.function(group, *args, async_op=op, **kwargs)
            if op.group is None:
                raise TypeError(f"{op.operation} cannot be bound")
            if not op.message:
                (<Casts>group).bound_by_all(op)
        finally:
            if began:
                leave(group.context, began, f"bind {op.operation}", op.a.nbytes or op.b.nbytes, 0, NOBODY, group,
                      numbers(group, before, 0, False))
        return op

    def __call__(self, *args, **kwargs):
        return self.operation.function(self.group, *args, **kwargs)

    def __get__(self, group, owner):
        return self

    @property
    def __self__(self):
        return self.group

    @property
    def __func__(self):
        return self.operation

    @property
    def __wrapped__(self):
        return types.MethodType(self.operation.function, self.group)

    @property
    def __name__(self):
        return self.operation.name

    @property
    def __qualname__(self):
        return self.operation.__qualname__

    @property
    def __doc__(self):
        return self.operation.__doc__

    @property
    def __module__(self):
        return self.operation.__module__

    def __eq__(self, other):
        return (isinstance(other, BoundOperation) and (<BoundOperation>other).group is self.group
                and (<BoundOperation>other).operation is self.operation)

    def __hash__(self):
        return hash((id(self.group), self.operation))

    def __reduce__(self):
        return getattr, (self.group, self.operation.name)

    def __repr__(self):
        return f"<operation {self.__qualname__} of {self.group!r}>"


cdef int callable_by_vector() except -1:
    """What Cython cannot say of types: their objects are called without a tuple of arguments."""
    cdef Operation a = Operation.__new__(Operation)
    cdef BoundOperation b = BoundOperation.__new__(BoundOperation)
    cdef Persistent c = Persistent.__new__(Persistent)
    st_called_at(Operation, <char *>&a.call - <char *><PyObject *>a, Py_TPFLAGS_METHOD_DESCRIPTOR)
    st_called_at(BoundOperation, <char *>&b.call - <char *><PyObject *>b, 0)
    st_called_at(Persistent, <char *>&c.call - <char *><PyObject *>c, 0)
    return 0


callable_by_vector()
