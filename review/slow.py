import grpc,sys,time,os,threading,queue,subprocess
from concurrent import futures
sys.path.insert(0,os.path.dirname(os.path.abspath(__file__))); from wire import *
PORT,RELAY=int(sys.argv[1]),int(sys.argv[2])
t0=time.time(); first=[True]
def log(*a): print(round(time.time()-t0,1),*a,flush=True)
class H(grpc.GenericRpcHandler):
    def service(self,d):
        if d.method.endswith('DeltaAggregatedResources'):
            return grpc.stream_stream_rpc_method_handler(self.delta)
    def delta(self,it,ctx):
        q=queue.Queue(); log('origin: stream')
        def feed():
            names=[f'c{i}' for i in range(6)]
            if first[0]:
                first[0]=False; q.put(delta_resp(CDS,'1',[(n,'') for n in names]))
                time.sleep(10); q.put('drop'); return
            for i,n in enumerate(names):
                time.sleep(25); log('origin sends',n); q.put(delta_resp(CDS,str(i),[(n,'')]))
        def read():
            asked=False
            try:
                for r in it:
                    if not asked: asked=True; threading.Thread(target=feed,daemon=True).start()
            except Exception as e: pass
            q.put(None)
        threading.Thread(target=read,daemon=True).start()
        while True:
            x=q.get()
            if x is None or x=='drop': log('origin: end'); return
            yield x
s=grpc.server(futures.ThreadPoolExecutor(20)); s.add_generic_rpc_handlers((H(),)); s.add_insecure_port(f'127.0.0.1:{PORT}'); s.start()
cfg='/tmp/slow.yaml'
open(cfg,'w').write(f'node: {{id: r}}\nupstream:\n  servers: [{{uri: "http://127.0.0.1:{PORT}"}}]\ndownstream:\n  listeners: [{{address: "127.0.0.1:{RELAY}"}}]\nadmin: {{address: "127.0.0.1:{RELAY+1}"}}\n')
p=subprocess.Popen(['target/debug/deltafan','serve','--config',cfg],stderr=open('/tmp/slow.log','w'))
time.sleep(1)
ch=grpc.insecure_channel(f'127.0.0.1:{RELAY}')
m=ch.stream_stream('/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources')
q=queue.Queue()
def gen():
    yield f(1,f(1,'c'))+f(2,CDS)
    while True: yield q.get()
def run():
    for r in m(gen()):
        pr=parse(r)
        log('client: resources',[dict(parse(v))[3].decode() for k,v in pr if k==2],'removed',[v.decode() for k,v in pr if k==6])
        q.put(f(2,CDS)+f(6,dict(pr)[5]))
threading.Thread(target=run,daemon=True).start()
time.sleep(150); p.terminate(); os._exit(0)
